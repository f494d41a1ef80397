"""The ten break-it tests: something is broken on purpose, and what ought to notice it does, at once and by name.

A test is green where what was expected came about, and for that reason: an exchange that ran into its deadline, a
stall and a call without an end are red whatever was expected. `undefended=True` leaves out the part that is tested;
then each has to be red. What the ranks write to stderr is dropped, unless TORCH_LOGS asks torch for logs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from course.break_it.declared import BREAK_IT as ABOUT
from course.break_it.judges import TESTS, judge
from course.break_it.program import WINDOW_S
from course.shared.options import chosen
from course.shared.program import Program
from course.shared.program import choose as choose_program
from labkit.contract import Exchange
from labkit.per_rank import PerRank
from labkit.ranks import RankError, Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance
from labkit.torch_compat import dynamo_reset

GREEN, RED = "green", "red"
MOST = 110  # characters of what was observed in the table; the details have all

TIMEOUT_S, EXCHANGE_S = 120.0, 30.0
STALL_S, PATIENT_S = 1.0, 20.0  # undefended ranks are known to wait; defended ones may only be slow
ORPHAN_GUARD_S = 45.0  # how long an orphan may take to leave on a busy machine; the window itself is WINDOW_S


def run(
    ranks: Ranks,
    only: Sequence[str] = (),
    *,
    undefended: bool = False,
    program: Any = None,
    talk: bool = False,
) -> Report:
    """Run the break-it tests on ranks, one after the other.

    The compile gate's backend is 'eager': breaks and graphs are Dynamo's, so it counts them as 'inductor' does. A test
    that ends the ranks leaves new ones behind; `orphan` has three ranks of its own.

    Args:
        ranks: two ranks or more.
        only: names of tests; none means all ten.
        undefended: leave out the part that is tested.
        program: the tests, as a module or a mapping such as a notebook's `globals()`; None is the lesson's own.
        talk: print a line for each test.

    Returns:
        The report. Its table `tests` has a row for each test: test, result ('green' or 'red'), seconds, expected,
        observed. Its table `details` adds what is broken, the part that has to meet it, how the test ended ('expected',
        'silent', 'waits', 'error' or 'measured'), and all that was said.

    Raises:
        ValueError: a test does not exist, or there are fewer than two ranks.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     list(run(ranks, ["digest"]).frame["result"]), list(run(ranks, ["digest"], undefended=True).frame["result"])
    (['green'], ['red'])
    """
    names = chosen(only, TESTS, "break-it test")
    if ranks.world_size < 2:
        raise ValueError(f"a break-it test needs at least 2 ranks, and these are {ranks.world_size}")
    bodies = {name: name.replace("-", "_") for name in names}
    ours = choose_program("break_it", program, bodies.values())
    rows = []
    for name in names:
        test, began = TESTS[name], time.perf_counter()
        attempt = _orphaned if name == "orphan" else _attempt
        found = attempt(ranks, getattr(ours.code, bodies[name]), not undefended)
        passed, observed = judge(test, found)
        row = {"test": name, "result": GREEN if passed else RED, "seconds": time.perf_counter() - began,
               "expected": test.expected, "observed": textwrap.shorten(observed, MOST, placeholder=" ..."),
               "broken": test.broken, "defence": test.defence, "how": ending(found, passed),
               "said": observed}  # fmt: skip
        rows.append(row)
        if talk:
            print(f"{row['result']:<5} {row['seconds']:4.1f} s  {name}", flush=True)
    return _report(rows, ranks, undefended, ours)


def together(reports: Sequence[Report]) -> Report:
    """Reports of single tests as one: their rows below each other, with the first one's label and provenance.

    Raises ValueError for none.
    """
    if not reports:
        raise ValueError("there are no reports to put together")
    tables = {
        name: pd.concat([r.tables[name] for r in reports], ignore_index=True) for name in reports[0].tables
    }
    return replace(reports[0], name="break-it", tables=tables, notes=_notes(tables["tests"]))


def passed(report: Report) -> bool:
    """Whether every test of a report is green: what the exit code of `labkit run break-it` says."""
    return bool((report.frame["result"] == GREEN).all())


def ending(found: PerRank | RankError, passed: bool) -> str:
    """How a test ended: 'expected'; 'silent' (the ranks finished); 'waits' (one waited); 'error'; else 'measured'."""
    if passed:
        return "expected"
    if isinstance(found, RankError):
        return "waits" if any(o.kind == "unfinished" for o in found.outcomes) else "error"
    return "measured" if all(isinstance(value, dict) for value in found) else "silent"


# --- one test ---


def _attempt(ranks: Ranks, body: Any, defended: bool) -> PerRank | RankError:
    stall = PATIENT_S if defended else STALL_S
    try:
        return ranks.run(_play, body, defended, timeout=TIMEOUT_S, stall=stall)
    except RankError as error:
        return error


def _play(body: Callable[[Exchange, bool], Any], defended: bool, said: str = os.devnull) -> Any:
    """On a rank: a test, with an exchange of its own, and nothing compiled before; `said` gets what goes to stderr."""
    dynamo_reset()
    exchange = Exchange.connect("break-it", timeout=EXCHANGE_S)
    wanted = said == os.devnull and os.environ.get("TORCH_LOGS")
    with contextlib.nullcontext() if wanted else quiet_stderr(said):
        return body(exchange, defended)


def _orphaned(_: Ranks, body: Any, defended: bool) -> PerRank | RankError:
    """The test that ends its ranks: on three of its own, as under a launcher that keeps the store."""
    grace = ORPHAN_GUARD_S if defended else 4 * WINDOW_S
    with tempfile.NamedTemporaryFile() as said, Ranks(3, "cpu", "gloo", quiet=True, live=False) as three:
        try:
            return three.run(_play, body, defended, said.name, timeout=TIMEOUT_S, stall=None, grace=grace)
        except RankError as error:
            error.add_note(said.read().decode(errors="replace"))  # a watchdog's last words
            return error


def _report(rows: list[dict[str, Any]], ranks: Ranks, undefended: bool, program: Program) -> Report:
    tests = pd.DataFrame(rows)
    settings = {"backend": ranks.backend, "device": ranks.device, "world_size": ranks.world_size}
    made = provenance(**settings, compiler="eager", undefended=undefended, program=program.digest)
    name = "break-it" if len(rows) > 1 else f"break-it-{rows[0]['test']}"
    columns = ["test", "result", "seconds", "expected", "observed"]
    tables = {
        "tests": tests[columns].round({"seconds": 1}),
        "details": tests[["test", "broken", "defence", "how", "said"]],
    }
    view = "course.break_it.figures:figure"
    return Report(name, ABOUT.title, ranks.label, tables, [], made, _notes(tests) + list(program.notes), view)


def _notes(tests: pd.DataFrame) -> list[str]:
    red = tests[tests["result"] == RED]["test"]
    took = f"{tests['seconds'].sum():.1f} s in all"
    return [f"red: {', '.join(red)}; {took}" if len(red) else f"all {len(tests)} green; {took}"]
