"""The ten break-it tests: something is broken on purpose, and what ought to notice it does, at once and by name.

A test is green where what was expected came about, and for that reason: an exchange that ran into its deadline, a
stall and a call without an end are red whatever was expected. `undefended=True` leaves out the part that is tested;
then each has to be red.
"""

from __future__ import annotations

import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.contract import Exchange
from labkit.lessons.break_it.declared import BREAK_IT as ABOUT
from labkit.lessons.break_it.judges import TESTS, judge
from labkit.lessons.break_it.tests import BODIES, WINDOW_S, Stand, orphan
from labkit.lessons.shared.options import chosen
from labkit.per_rank import PerRank
from labkit.ranks import RankError, Ranks, here
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance
from labkit.torch_compat import dynamo_reset

GREEN, RED = "green", "red"
MOST = 110  # characters of what was observed in the table; the details have all

TIMEOUT_S, EXCHANGE_S = 120.0, 30.0
STALL_S, PATIENT_S = 1.0, 20.0  # undefended ranks are known to wait; defended ones may only be slow
ORPHAN_GUARD_S = 45.0  # how long an orphan may take to leave on a busy machine; the window itself is WINDOW_S


def run(ranks: Ranks, only: Sequence[str] = (), *, undefended: bool = False, talk: bool = False) -> Report:
    """Run the break-it tests on `ranks` (or those named in `only`), one after the other.

    The report's table `tests` has a row for each: test, result ('green' or 'red'), seconds, expected, observed. Its
    table `details` adds what is broken, the part that has to meet it, how the test ended ('expected', 'silent',
    'waits', 'error' or 'measured'), and all that was said. The compile gate's backend is 'eager': breaks and
    graphs are Dynamo's, so it counts them as 'inductor' does. A test that ends the ranks leaves new
    ones behind; `orphan` has three ranks of its own. Raises ValueError for a test that does not exist, or fewer than
    two ranks, before anything runs.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     list(run(ranks, ["digest"]).frame["result"]), list(run(ranks, ["digest"], undefended=True).frame["result"])
    (['green'], ['red'])
    """
    names = chosen(only, TESTS, "break-it test")
    if ranks.world_size < 2:
        raise ValueError(f"a break-it test needs at least 2 ranks, and these are {ranks.world_size}")
    rows = []
    for name in names:
        test, began = TESTS[name], time.perf_counter()
        found = _orphaned(not undefended) if name == "orphan" else _attempt(ranks, name, undefended)
        passed, observed = judge(test, found)
        row = {"test": name, "result": GREEN if passed else RED, "seconds": time.perf_counter() - began,
               "expected": test.expected, "observed": textwrap.shorten(observed, MOST, placeholder=" ..."),
               "broken": test.broken, "defence": test.defence, "how": ending(found, passed),
               "said": observed}  # fmt: skip
        rows.append(row)
        if talk:
            print(f"{row['result']:<5} {row['seconds']:4.1f} s  {name}", flush=True)
    return _report(rows, ranks, undefended)


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


def _attempt(ranks: Ranks, name: str, undefended: bool) -> PerRank | RankError:
    stall = STALL_S if undefended else PATIENT_S
    try:
        return ranks.run(_play, BODIES[name], not undefended, timeout=TIMEOUT_S, stall=stall)
    except RankError as error:
        return error


def _play(body: Callable[[Stand], Any], defended: bool) -> Any:
    dynamo_reset()
    exchange = Exchange.connect("break-it", timeout=EXCHANGE_S)
    with quiet_stderr():
        return body(Stand(exchange, defended, here().device))


def _orphaned(defended: bool) -> PerRank | RankError:
    """The test that ends its ranks: on three of its own, as under a launcher that keeps the store."""
    with tempfile.TemporaryDirectory() as folder, Ranks(3, "cpu", "gloo", quiet=True, live=False) as three:
        try:
            grace = ORPHAN_GUARD_S if defended else 4 * WINDOW_S
            return three.run(orphan, folder, defended, timeout=TIMEOUT_S, stall=None, grace=grace)
        except RankError as error:
            said = Path(folder) / "stderr"
            error.add_note(said.read_text(errors="replace") if said.exists() else "")
            return error


def _report(rows: list[dict[str, Any]], ranks: Ranks, undefended: bool) -> Report:
    tests = pd.DataFrame(rows)
    settings = {"backend": ranks.backend, "device": ranks.device, "world_size": ranks.world_size}
    made = provenance(**settings, compiler="eager", undefended=undefended)
    name = "break-it" if len(rows) > 1 else f"break-it-{rows[0]['test']}"
    tables = {
        "tests": tests[["test", "result", "seconds", "expected", "observed"]].round({"seconds": 1}),
        "details": tests[["test", "broken", "defence", "how", "said"]],
    }
    view = "labkit.lessons.break_it.figures:figure"
    return Report(name, ABOUT.title, ranks.label, tables, [], made, _notes(tests), view)


def _notes(tests: pd.DataFrame) -> list[str]:
    red = tests[tests["result"] == RED]["test"]
    took = f"{tests['seconds'].sum():.1f} s in all"
    return [f"red: {', '.join(red)}; {took}" if len(red) else f"all {len(tests)} green; {took}"]
