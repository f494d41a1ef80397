"""The ten break-it tests: something is broken on purpose, and what ought to notice it does, at once and by name.

A test is green where what was expected came about, and for that reason: an exchange that ran into its deadline, a
stall and a call without an end are red whatever was expected. `undefended=True` leaves out the part that is tested;
then each has to be red.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.contract.exchange import listed
from labkit.experiments.break_tests import BODIES, ENV, KNOWN_SITE, LEADER, WINDOW_S, WORKER, Stand, orphan
from labkit.experiments.options import Option
from labkit.per_rank import PerRank
from labkit.ranks import RankError, Ranks
from labkit.report import Report, provenance

if TYPE_CHECKING:
    import pandas as pd

TITLE = "Ten break-it tests"
QUESTION = "Does it crash rather than hang, and say why?"
SOURCE = "topic 12, minimal daily regression suite (break-it tests)"
LINK = "gloo"
OPTIONS = (Option("undefended", bool, "leave out the part that is tested: every test has to go red"),)
GREEN, RED = "green", "red"
MOST_LINES, MOST = 4, 110  # of an error: lines that are kept, and characters of them in the table

TIMEOUT_S, EXCHANGE_S = 120.0, 30.0
STALL_S, PATIENT_S = 1.0, 20.0  # undefended ranks are known to wait; defended ones may only be slow
ORPHAN_GUARD_S = 45.0  # how long an orphan may take to leave on a busy machine; the window itself is WINDOW_S

Judged = tuple[bool, str]


@dataclass(frozen=True)
class BreakTest:
    """One test: what is broken on purpose, the part that has to meet it, what is expected, and who judges.

    `judge` reads the values by rank, or the error of the call; it says whether that was expected, and what was seen.
    """

    name: str
    broken: str
    defence: str
    expected: str
    judge: Callable[[PerRank | RankError], Judged]


def run(
    ranks: Ranks,
    only: Sequence[str] = (),
    *,
    undefended: bool = False,
    compiler: str = "eager",
    talk: bool = False,
) -> Report:
    """Run the break-it tests on `ranks` (or those named in `only`), one after the other.

    The report's table `tests` has a row for each: test, result ('green' or 'red'), seconds, expected, observed. Its
    table `details` adds what is broken, the part that has to meet it, how the test ended ('expected', 'silent',
    'waits', 'error' or 'measured'), and all that was said. compiler: torch.compile's backend for the compile gate;
    breaks and graphs are Dynamo's, so 'eager' counts them as 'inductor' does. A test that ends the ranks leaves new
    ones behind; `orphan` has three ranks of its own. Raises ValueError for a test that does not exist, or fewer than
    two ranks, before anything runs.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     list(run(ranks, ["digest"]).frame["result"]), list(run(ranks, ["digest"], undefended=True).frame["result"])
    (['green'], ['red'])
    """
    names = list(only) or list(TESTS)
    for name in names:
        if name not in TESTS:
            raise ValueError(f"unknown break-it test {name!r}: there is {', '.join(TESTS)}")
    if ranks.world_size < 2:
        raise ValueError(f"a break-it test needs at least 2 ranks, and these are {ranks.world_size}")
    rows = []
    for name in names:
        test, began = TESTS[name], time.perf_counter()
        found = _orphaned(not undefended) if name == "orphan" else _attempt(ranks, name, undefended, compiler)
        passed, observed = judge(test, found)
        row = {"test": name, "result": GREEN if passed else RED, "seconds": time.perf_counter() - began,
               "expected": test.expected, "observed": textwrap.shorten(observed, MOST, placeholder=" ..."),
               "broken": test.broken, "defence": test.defence, "how": ending(found, passed),
               "said": observed}  # fmt: skip
        rows.append(row)
        if talk:
            print(f"{row['result']:<5} {row['seconds']:4.1f} s  {name}", flush=True)
    return _report(rows, ranks, undefended, compiler)


def together(reports: Sequence[Report]) -> Report:
    """Reports of single tests as one: their rows below each other, with the first one's label and provenance.

    Raises ValueError for none.
    """
    import pandas as pd

    if not reports:
        raise ValueError("there are no reports to put together")
    tables = {
        name: pd.concat([r.tables[name] for r in reports], ignore_index=True) for name in reports[0].tables
    }
    return replace(reports[0], name="break-it", tables=tables, notes=_notes(tables["tests"]))


def passed(report: Report) -> bool:
    """Whether every test of a report is green: what the exit code of `labkit run break-it` says."""
    return bool((report.frame["result"] == GREEN).all())


def judge(test: BreakTest, found: PerRank | RankError) -> Judged:
    """Whether what came of a test is what was expected, and what was seen, on one line.

    What ended by a limit of time is red for every test.
    """
    if isinstance(found, RankError):
        if found.headline.startswith(("stalled", "no end")):
            waits = [f"rank {o.rank} waits in {o.waits}" for o in found.outcomes if o.waits]
            return False, f"hung: {', '.join(sorted(waits)) or found.headline}"
        late = [o for o in found.outcomes if o.type == "Absent"]
        if late:
            return False, f"ran into a deadline: {_one_line(late[0].message)}"
    return test.judge(found)


def ending(found: PerRank | RankError, passed: bool) -> str:
    """How a test ended: 'expected'; 'silent' (the ranks finished); 'waits' (one waited); 'error'; else 'measured'."""
    if passed:
        return "expected"
    if isinstance(found, RankError):
        return "waits" if any(o.kind == "unfinished" for o in found.outcomes) else "error"
    return "measured" if all(isinstance(value, dict) for value in found) else "silent"


# --- one test ---


def _attempt(ranks: Ranks, name: str, undefended: bool, compiler: str) -> PerRank | RankError:
    stall = STALL_S if undefended else PATIENT_S
    try:
        return ranks.run(_play, BODIES[name], not undefended, compiler, timeout=TIMEOUT_S, stall=stall)
    except RankError as error:
        return error


def _play(body: Callable[[Stand], Any], defended: bool, compiler: str) -> Any:
    from labkit.contract import Exchange
    from labkit.ranks import here
    from labkit.torch_compat import dynamo_reset

    dynamo_reset()
    exchange = Exchange.connect("break-it", timeout=EXCHANGE_S)
    with _quiet():
        return body(Stand(exchange, defended, here().device, compiler))


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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what C++ and Dynamo write to stderr: a test makes them complain on purpose."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


# --- judges ---


def raises(kind: str, *words: str) -> Callable[[PerRank | RankError], Judged]:
    """Every rank raises `kind`, and says these words."""

    def judge(found: PerRank | RankError) -> Judged:
        if not isinstance(found, RankError):
            return False, f"nobody noticed: {_by_rank(found)}"
        all_of_them = all(o.kind == "error" and o.type == kind for o in found.outcomes)
        said = found.outcomes[0].message
        told = all(word in said for word in words)
        return all_of_them and told, _ended(found)

    return judge


def _values(
    check: Callable[[list[Any]], bool], say: Callable[[list[Any]], str]
) -> Callable[[PerRank | RankError], Judged]:
    """Every rank returns; `check` and `say` read what."""

    def judge(found: PerRank | RankError) -> Judged:
        if isinstance(found, RankError):
            return False, _ended(found)
        values = list(found)
        return check(values), say(values)

    return judge


def _left(found: PerRank | RankError) -> Judged:
    """The worker ended by its own watchdog, whose last words name the silence."""
    if not isinstance(found, RankError):
        return False, "the leader did not die"
    ends = {o.rank: o for o in found.outcomes}
    if ends[LEADER].code != -9:
        return False, _ended(found)
    worker = ends[WORKER]
    if worker.kind != "dead":
        where = worker.waits or "Python"
        return False, f"still waiting in {where} {4 * WINDOW_S:g} s after its leader was killed"
    said = " ".join(getattr(found, "__notes__", [])).strip()
    return worker.code == 17 and "no heartbeat" in said, f"exit code {worker.code}; {_one_line(said)}"


def _ended(error: RankError) -> str:
    parts = []
    for o in error.outcomes:
        if o.kind == "unfinished":
            parts.append(
                f"rank {o.rank} was left waiting in {o.waits}" if o.waits else f"rank {o.rank} did not end"
            )
        elif o.kind == "error":
            ranks = [
                other.rank for other in error.outcomes if (other.type, other.message) == (o.type, o.message)
            ]
            parts.append(f"{o.type} on rank {listed(sorted(ranks))}: {_one_line(o.message)}")
        elif o.kind != "ok":
            parts.append(_one_line(o.describe().splitlines()[0]))
    return "; ".join(dict.fromkeys(parts))


def _by_rank(values: Any) -> str:
    said = ", ".join(f"rank {rank} {value}" for rank, value in enumerate(values))
    return said.replace(".0,", ",").replace(".0]", "]")


def _one_line(text: str) -> str:
    lines = [" ".join(line.split()).rstrip(":;") for line in text.splitlines() if line.strip()]
    return "; ".join(lines[:MOST_LINES])


def _first_sites(values: list[Any]) -> str:
    sites = {rank: where or "no break" for rank, where in values[0].items()}
    same = set(sites.values())
    return f"first break: {same.pop()}" if len(same) == 1 else f"first break: {sites}"


def _counts(values: list[Any]) -> str:
    same = all(value == values[0] for value in values)
    said = [", ".join(f"{n} {name}" for name, n in value.items()) for value in values]
    return said[0] if same else "; ".join(f"rank {rank} {text}" for rank, text in enumerate(said))


def _smoke_right(values: list[Any]) -> bool:
    plans = ["infer", "infer", "noop", "infer", "shutdown"]
    total = float(sum(index for index, action in enumerate(plans) if action == "infer") * len(values))
    return all(value["heard"] == plans and value["total"] == total for value in values)


def _delivered(values: list[Any]) -> bool:
    got = all(value == {"got": {"steps": 4}, "x": [0.0, 1.0, 2.0, 3.0]} for value in values[1:])
    return got and "meta 'lock'" in values[0]["refused"]


TESTS: dict[str, BreakTest] = {
    test.name: test
    for test in (
        BreakTest(
            "smoke", "a call without work in between", "announce",
            "5 plans followed on every rank, 3 of them collectives", _values(
                _smoke_right, lambda v: f"{len(v[0]['heard'])} plans followed: {', '.join(v[0]['heard'])}")),
        BreakTest("env", f"{ENV} differs on one rank", "assert_parity", "ParityError on every rank, with both values",
                  raises("ParityError", f"env {ENV}", "flash", "paged")),
        BreakTest(
            "compile-gate", "nothing; undefended, the all-reduce is disabled", "functional collectives",
            "1 graph, 0 breaks a forward",
            _values(lambda v: all(x["graphs"] == 1 and x["breaks"] == 0 for x in v), _counts)),
        BreakTest(
            "first-break", "a slice by a tensor's value; undefended, a log call before it", "a tensor-pure region",
            f"first break: {KNOWN_SITE}",
            _values(lambda v: all(KNOWN_SITE in where for where in v[0].values()), _first_sites)),
        BreakTest(
            "guards", "nothing; undefended, the warmup has another shape", "warm_up with the served shapes",
            "0 graphs and 0 recompiles in 8 calls after warmup",
            _values(lambda v: all(x["graphs"] == x["recompiles"] == 0 for x in v), _counts)),
        BreakTest(
            "one-dimension", "a length varies, undefended on one rank only", "announce",
            "at most 1 recompile, the same on every rank",
            _values(lambda v: all(x["recompiles"] <= 1 and x == v[0] for x in v), _counts)),
        BreakTest("orphan", "the leader is killed", "Heartbeat, Watchdog",
                  f"the worker leaves, exit code 17, window {WINDOW_S:g} s", _left),
        BreakTest("preflight", "metadata that cannot be pickled", "preflight",
                  "refused before the header, and the next message arrives",
                  _values(_delivered, lambda v: f"{v[0]['refused']}; then rank 1 got {v[1]['got']}")),
        BreakTest("digest", "one element on rank 0, by 1e-6", "InputDigests", "DigestError on every rank",
                  raises("DigestError", "inputs differ between ranks", "x: rank 0")),
        BreakTest("fingerprint", "one weight of a shard on the last rank", "Fingerprints",
                  "FingerprintError on every rank, naming the rank",
                  raises("FingerprintError", "shards changed", ": w")),
    )
}  # fmt: skip


PARTS = {name: test.broken for name, test in TESTS.items()}


def _report(rows: list[dict[str, Any]], ranks: Ranks, undefended: bool, compiler: str) -> Report:
    import pandas as pd

    tests = pd.DataFrame(rows)
    settings = provenance(
        backend=ranks.backend,
        device=ranks.device,
        world_size=ranks.world_size,
        compiler=compiler,
        undefended=undefended,
    )
    name = "break-it" if len(rows) > 1 else f"break-it-{rows[0]['test']}"
    tables = {
        "tests": tests[["test", "result", "seconds", "expected", "observed"]].round({"seconds": 1}),
        "details": tests[["test", "broken", "defence", "how", "said"]],
    }
    return Report(
        name, TITLE, ranks.label, tables, [], settings, _notes(tests), "labkit.views.break_it:figure"
    )


def _notes(tests: pd.DataFrame) -> list[str]:
    red = tests[tests["result"] == RED]["test"]
    took = f"{tests['seconds'].sum():.1f} s in all"
    return [f"red: {', '.join(red)}; {took}" if len(red) else f"all {len(tests)} green; {took}"]
