"""What each of the ten break-it tests expects, and the judge of how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course.break_it.program import ENV, KNOWN_SITE, LEADER, WINDOW_S, WORKER
from labkit.contract.exchange import listed
from labkit.per_rank import PerRank
from labkit.ranks import RankError

__all__ = ["TESTS", "BreakTest", "Judged", "judge"]

MOST_LINES = 4  # of an error that are kept
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


def judge(test: BreakTest, found: PerRank | RankError) -> Judged:
    """Whether what came of a test is what was expected, and what was seen, on one line.

    What ended by a limit of time is red for every test.
    """
    if isinstance(found, RankError):
        if found.hung:
            waits = [f"rank {o.rank} waits in {o.waits}" for o in found.outcomes if o.waits]
            return False, f"hung: {', '.join(sorted(waits)) or found.headline}"
        late = [o for o in found.outcomes if o.type == "Absent"]
        if late:
            return False, f"ran into a deadline: {_one_line(late[0].message)}"
    return test.judge(found)


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
        values = list(found.values())
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
            how = f"was left waiting in {o.waits}" if o.waits else "did not end"
            parts.append(f"rank {o.rank} {how}")
        elif o.kind == "error":
            same = (other for other in error.outcomes if (other.type, other.message) == (o.type, o.message))
            ranks = [other.rank for other in same]
            parts.append(f"{o.type} on rank {listed(sorted(ranks))}: {_one_line(o.message)}")
        elif o.kind != "ok":
            parts.append(_one_line(o.describe().splitlines()[0]))
    return "; ".join(dict.fromkeys(parts))


def _by_rank(found: PerRank) -> str:
    said = ", ".join(f"rank {rank} {value}" for rank, value in found.items())
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
