"""A run of the claim ledger: which claims still hold on the installed torch, row by row."""

from __future__ import annotations

import json
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit import hardware
from labkit.study import checks as base
from labkit.study.catalog import CHECKS
from labkit.study.checks import Bench, Check, Probe, Result
from labkit.study.claims import NEEDS, Claim, Claims

__all__ = ["MEANINGS", "REFUTED", "STATUSES", "Ledger", "Line", "check_of", "needs_no_run", "possible", "run"]

# what may stand about a row, and what each word means: the one place where it is defined
MEANINGS = {
    "holds": "run here on PyTorch itself; it could have failed, and did not",
    "changed": "run here, and not so on this torch; the version since which it is not so is named where a recorded run"
    " of an older torch still has it",
    "never true": "run here, and not so; what the source says has been so on no torch, and the row says why",
    "not provoked": "the claim says that something can happen; it did not here, and one run without it refutes nothing",
    "read in the source": "stands in torch's files as they were released; they were read, not run",
    "simulated": "shown by a model of what hardware would do, and on no such hardware",
    "enforced": "advice that labkit follows: the check runs labkit's own code and shows nothing about PyTorch",
    "cited": "a figure or a fact of the source that no run of ours can tell; at most our copy of it was compared",
    "cannot tell here": "it takes hardware, quiet or a version that is not here, or no run can tell",
    "not yet tested": "nobody has written a check",
}
STATUSES = tuple(MEANINGS)
HOLDS, CHANGED, NEVER, NOT_PROVOKED, READ, SIMULATED, ENFORCED, CITED, CANNOT_TELL, UNTESTED = STATUSES
REFUTED = (CHANGED, NEVER)


@dataclass(frozen=True)
class Line:
    """What was found about one claim.

    Args:
        claim: the row.
        status: one of STATUSES.
        measured: the measured figure.
        missing: what was missing, where nothing was measured; or why it was never true.
    """

    claim: Claim
    status: str
    measured: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Ledger:
    """A run of the ledger.

    Args:
        lines: one for each chosen row.
        evidence: what each probe saw, or why it failed, by name.
        untested: rows of the whole file without a check, whichever rows were chosen.
        rows: rows of the whole file.
        provenance: where it ran.
    """

    lines: tuple[Line, ...]
    evidence: dict[str, Any]
    untested: int
    rows: int
    provenance: dict[str, Any] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """The number of lines with each status, in the order of STATUSES."""
        found = Counter(line.status for line in self.lines)
        return {status: found[status] for status in STATUSES}

    def text(
        self, width: int = 150, claims: bool | None = None, since: Mapping[str, str] | None = None
    ) -> str:
        """The table by lesson, then the totals.

        Args:
            width: of a line, in characters.
            claims: add what each row says; by default where there are at most 30 rows.
            since: the torch version since which a claim is not so, by its id; see `versions.since`.

        Returns:
            The text.
        """
        claims = len(self.lines) <= 30 if claims is None else claims
        parts = []
        for lesson in sorted({line.claim.lesson for line in self.lines}):
            mine = [line for line in self.lines if line.claim.lesson == lesson]
            parts += [lesson, *_table(mine, width, claims, since or {}), ""]
        where = self.provenance
        counts = self.counts()
        parts.append("  ".join(f"{status}: {n}" for status, n in counts.items()))
        parts += [f"  {status:<18}  {MEANINGS[status]}" for status, n in counts.items() if n]
        parts.append(f"rows without a check: {self.untested} of {self.rows}")
        parts.append(
            f"torch {where.get('torch', '?')}, {where.get('hardware', '?')}, {where.get('date', '?')}"
        )
        parts.append("checks run on CPU ranks (gloo, shm, or a fake group that exchanges nothing)")
        parts.append("those of rows that need GPUs run on GPUs")
        return "\n".join(parts)

    __str__ = text

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: lines, totals, evidence, provenance."""
        return {
            "provenance": self.provenance,
            "counts": self.counts(),
            "rows": self.rows,
            "rows_without_check": self.untested,
            "lines": [
                {
                    **asdict(line.claim),
                    "status": line.status,
                    "measured": line.measured,
                    "missing": line.missing,
                }
                for line in self.lines
            ],
            "evidence": self.evidence,
        }


def _table(lines: list[Line], width: int, claims: bool, since: Mapping[str, str]) -> list[str]:
    ids = max(len(line.claim.id) for line in lines)
    figures = min(max([len(line.claim.figure) for line in lines] + [7]), 26)
    status = max(map(len, STATUSES))
    head = f"  {'status':<{status}}  {'claim':<{ids}}  {'claimed':<{figures}}  measured here"
    rows = [head]
    for line in sorted(lines, key=lambda line: STATUSES.index(line.status)):
        version = since.get(line.claim.id, "") if line.status == CHANGED else ""
        said = "; ".join(filter(None, [version and f"since {version}", line.measured, line.missing])) or "-"
        start = f"  {line.status:<{status}}  {line.claim.id:<{ids}}  {line.claim.figure or '-':<{figures}}  "
        indent = " " * min(len(start), width // 2)
        rows += textwrap.wrap(
            said, width, initial_indent=start, subsequent_indent=indent, break_long_words=False
        )
        if claims:
            deep = " " * (status + 4)
            quoted = f"“{line.claim.words}” " if line.claim.words else ""
            rows += textwrap.wrap(
                f"{line.claim.claim} {quoted}({line.claim.source}, {line.claim.section}; {line.claim.date})",
                width,
                initial_indent=deep,
                subsequent_indent=deep,
            )
    return rows


def run(
    claims: Claims,
    rows: Iterable[Claim] | None = None,
    *,
    checks: Mapping[str, Check] = CHECKS,
    gpus: int | None = None,
    talk: Callable[[str], None] | None = None,
    each: Callable[[Ledger], object] | None = None,
) -> Ledger:
    """Run checks, each probe once, and judge every row by what its probe saw.

    A probe or a judge that fails makes its rows "cannot tell here" with the reason.

    Args:
        claims: the whole ledger.
        rows: the rows to check; by default all.
        checks: checks by name.
        gpus: number of GPUs to go by; by default those that are visible.
        talk: called with the name of each probe before it runs.
        each: called with a ledger of the rows of each probe when it ends.

    Returns:
        The ledger of all chosen rows.

    >>> from labkit.study.claims import load
    >>> claims = load()
    >>> run(claims, claims.choose(only=["streams.result.small-percent"])).counts()["cited"]
    1
    """
    from labkit.report import provenance

    chosen = tuple(claims.rows if rows is None else rows)
    count = len(hardware.gpus()) if gpus is None else gpus
    seen: dict[str, dict[str, Any] | str] = {}
    by_probe: dict[str, list[Claim]] = {}
    for row in chosen:
        check = checks.get(check_of(row, count))
        if check is not None and not needs_no_run(row, count):
            by_probe.setdefault(check.probe.name, []).append(row)

    def judged(rows: Iterable[Claim], saw: dict[str, dict[str, Any] | str]) -> Ledger:
        untested = sum(row.untested for row in claims.rows)
        lines = tuple(_line(row, checks, saw, count) for row in rows)
        return Ledger(lines, saw, untested, len(claims.rows), provenance())

    with Bench() as bench:
        for name, mine in by_probe.items():
            if talk:
                talk(name)
            seen[name] = _measure(checks[check_of(mine[0], count)].probe, bench)
            if each:
                each(judged(mine, {name: seen[name]}))
    return judged(chosen, seen)


def possible(check_name: str, no: str = CHANGED, checks: Mapping[str, Check] = CHECKS) -> set[str]:
    """The statuses that a check can give; none where there is no such check.

    Args:
        check_name: of the check.
        no: what its no is called; see `Claim.no`.
        checks: checks by name.

    >>> sorted(possible("reference.run_12b_fps"))
    ['cannot tell here', 'cited']
    """
    check = checks.get(check_name)
    if check is None:
        return set()
    return {check.word, CANNOT_TELL} | (set() if base.NO[check.word] else {no})


def needs_no_run(row: Claim, gpus: int | None = None) -> bool:
    """Whether the status of a row is known without a measurement: no check, or hardware that is not here.

    Args:
        row: the claim.
        gpus: number of GPUs to go by; by default those that are visible.

    >>> from labkit.study.claims import load
    >>> needs_no_run(load().choose(only=["t11.exp.cliff-breaks"])[0])
    False
    """
    return row.check is None or (not row.read and bool(_missing(row, gpus)))


def check_of(row: Claim, gpus: int | None = None) -> str:
    """The name of the check for a row with so many GPUs, by default those that are visible; '' for none."""
    return row.read if row.read and _missing(row, gpus) else row.check or ""


def _measure(probe: Probe, bench: Bench) -> dict[str, Any] | str:
    """What the probe saw, as plain data; or, as a text, why it failed."""
    started = time.perf_counter()
    try:
        seen = json.loads(json.dumps(probe.run(bench), allow_nan=False))
    except (
        Exception
    ) as error:  # whatever a torch may do to a probe: one row less is told, and nothing is made up
        return _reason(error)
    return {**seen, "seconds": round(time.perf_counter() - started, 2)}


def _reason(error: Exception) -> str:
    outcomes = getattr(error, "outcomes", None)  # a RankError's first line is only that a rank failed
    said = outcomes[0].describe() if outcomes else f"{type(error).__name__}: {error}"
    return next(iter(said.splitlines()), type(error).__name__)[:200]


def _missing(row: Claim, gpus: int | None) -> str:
    there = len(hardware.gpus()) if gpus is None else gpus
    lacking = [words for name in row.needs for least, words in [NEEDS[name]] if there < least]
    return f"needs {' and '.join(lacking)}" if lacking else ""


def _line(
    row: Claim, checks: Mapping[str, Check], seen: Mapping[str, dict[str, Any] | str], gpus: int
) -> Line:
    missing = _missing(row, gpus)
    if row.beyond:
        # what was once the case is cited; for advice there is nothing to cite
        cited = row.kind == "history"
        return Line(row, CITED if cited else CANNOT_TELL, missing=f"no run can tell: {row.beyond}")
    if row.check is None:
        return Line(row, CANNOT_TELL, missing=f"{missing}; no check yet") if missing else Line(row, UNTESTED)
    if missing and not row.read:
        return Line(row, CANNOT_TELL, missing=missing)
    check = checks.get(name := check_of(row, gpus))
    if check is None:
        return Line(row, CANNOT_TELL, missing=f"there is no check {name!r}")
    record = seen[check.probe.name]
    if isinstance(record, str):
        return Line(row, CANNOT_TELL, missing=f"{check.probe.name} failed: {record}")
    try:
        result: Result = check.result({**record, "claimed": row.figure})
    except Exception as error:  # a record that lacks what the judge reads says nothing about the claim
        return Line(row, CANNOT_TELL, missing=f"{check.name} could not judge: {_reason(error)}")
    if result.status == base.CHANGED:
        return Line(row, row.no, result.measured, row.never or result.missing)
    status = CANNOT_TELL if result.status == base.CANNOT_TELL else result.status
    return Line(row, status, result.measured, result.missing)
