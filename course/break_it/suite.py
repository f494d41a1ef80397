"""Runs a break-it test on ranks and says how it ended: green where what was expected came about, and for that reason.

An exchange that ran into its deadline, a stall and a call without an end are red whatever was expected. What the ranks
write to stderr is dropped, unless TORCH_LOGS asks torch for logs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import textwrap
import time
from collections.abc import Callable
from typing import Any

from course.break_it.judges import TESTS, judge
from course.break_it.program import WINDOW_S
from labkit.contract import Exchange
from labkit.per_rank import PerRank
from labkit.ranks import RankError, Ranks
from labkit.ranks.output import quiet_stderr
from labkit.torch_compat import dynamo_reset

__all__ = ["GREEN", "PATIENT_S", "RED", "STALL_S", "ending", "result"]

GREEN, RED = "green", "red"
MOST = 110  # characters of what was observed in the figure; `said` has all

TIMEOUT_S, EXCHANGE_S = 120.0, 30.0
STALL_S, PATIENT_S = 1.0, 20.0  # undefended ranks are known to wait; defended ones may only be slow
ORPHAN_GUARD_S = 45.0  # how long an orphan may take to leave on a busy machine; the window itself is WINDOW_S

Body = Callable[[Exchange, bool], Any]


def result(ranks: Ranks, body: Body, defended: bool) -> dict[str, Any]:
    """Run a test, and judge how it ended.

    Breaks and graphs are Dynamo's, so the backend 'eager' counts them as 'inductor' does. A test that ends the ranks
    leaves new ones behind; `orphan` has three ranks of its own.

    Args:
        ranks: two ranks or more.
        body: a function of the lesson; the name of its test is its own.
        defended: whether the part that is tested is on.

    Returns:
        A row: test, result ('green' or 'red'), seconds, expected, observed; what is broken, the part that has to meet
        it, how the test ended ('expected', 'silent', 'waits', 'error' or 'measured'), and all that was said.

    >>> def digest(exchange, defended):
    ...     return [1.0 + exchange.rank]
    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     row = result(ranks, digest, defended=True)
    >>> row["result"], row["said"]
    ('red', 'nobody noticed: rank 0 [1], rank 1 [2]')
    """
    name = body.__name__.replace("_", "-")
    test, began = TESTS[name], time.perf_counter()
    found = (_orphaned if name == "orphan" else _attempt)(ranks, body, defended)
    passed, said = judge(test, found)
    return {
        "test": name, "result": GREEN if passed else RED, "seconds": round(time.perf_counter() - began, 1),
        "expected": test.expected, "observed": textwrap.shorten(said, MOST, placeholder=" ..."),
        "broken": test.broken, "defence": test.defence, "how": ending(found, passed), "said": said,
    }  # fmt: skip


def ending(found: PerRank | RankError, passed: bool) -> str:
    """How a test ended: 'expected'; 'silent' (the ranks finished); 'waits' (one waited); 'error'; else 'measured'."""
    if passed:
        return "expected"
    if isinstance(found, RankError):
        return "waits" if any(o.kind == "unfinished" for o in found.outcomes) else "error"
    return "measured" if all(isinstance(value, dict) for value in found.values()) else "silent"


def _attempt(ranks: Ranks, body: Body, defended: bool) -> PerRank | RankError:
    stall = PATIENT_S if defended else STALL_S
    try:
        return ranks.run(_play, body, defended, timeout=TIMEOUT_S, stall=stall)
    except RankError as error:
        return error


def _play(body: Body, defended: bool, said: str = os.devnull) -> Any:
    """On a rank: a test, with an exchange of its own, and nothing compiled before; `said` gets what goes to stderr."""
    dynamo_reset()
    exchange = Exchange.connect("break-it", timeout=EXCHANGE_S)
    wanted = said == os.devnull and os.environ.get("TORCH_LOGS")
    with contextlib.nullcontext() if wanted else quiet_stderr(said):
        return body(exchange, defended)


def _orphaned(_: Ranks, body: Body, defended: bool) -> PerRank | RankError:
    """The test that ends its ranks: on three of its own, as under a launcher that keeps the store."""
    grace = ORPHAN_GUARD_S if defended else 4 * WINDOW_S
    with tempfile.NamedTemporaryFile() as said, Ranks(3, "cpu", "gloo", quiet=True, live=False) as three:
        try:
            return three.run(_play, body, defended, said.name, timeout=TIMEOUT_S, stall=None, grace=grace)
        except RankError as error:
            error.add_note(said.read().decode(errors="replace"))  # a watchdog's last words
            return error
