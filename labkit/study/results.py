"""Kept results of the ledger, and the current status of every claim: run now, kept, told without a run, or not run.

A kept result counts only where the same code would produce it again: on this torch, this commit of labkit and this
hardware, about the claim as it reads now. Anything else is shown as not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import __version__, files, hardware
from labkit.report import Report, provenance
from labkit.study import ledger, recorded
from labkit.study.catalog import CHECKS
from labkit.study.claims import Claim, Claims
from labkit.study.ledger import Ledger, Line

__all__ = [
    "NOT_RUN",
    "STATUSES",
    "add",
    "affordable",
    "current",
    "file",
    "filled",
    "load",
    "of",
    "quick",
    "resume",
    "standing",
    "usable",
]

NOT_RUN = "not run"
STATUSES = (*ledger.STATUSES, NOT_RUN)
NOW, KEPT, TOLD, NOTHING = "run now", "kept", "needs no run", ""  # where a row's status is from
MADE = ("hardware", "torch", "commit", "date")
SAME = MADE[:3]
TITLE = "What of the sources' claims still holds"
LABEL = "gloo, shm, host only · cpu"  # what the checks run on
VIEW = "labkit.lessons.ledger.figures:figure"


def file(folder: str | Path | None = None) -> Path:
    """The path of the kept results.

    Args:
        folder: by default the reader's own data folder.
    """
    return Path(files.home() if folder is None else folder) / "ledger.json"


def of(found: Ledger, origin: str = NOW) -> Report:
    """Convert a run of the ledger into a Report.

    Args:
        found: the run.
        origin: where the status of its rows is from.

    Returns:
        A report with the tables `lines`, a row for each claim, and `probes`, with the seconds of each. Every row says
        on what and when it was made.

    >>> from labkit.study.claims import load
    >>> claims = load()
    >>> report = of(ledger.run(claims, claims.choose(only=["streams.result.small-percent"])))
    >>> list(report.frame["status"]), list(report.tables["probes"]["probe"])
    (['cited'], ['reference.tables'])
    """
    made = _made(found.provenance)
    rows = [{**_row(line), "origin": origin, **made} for line in found.lines]
    probes = [
        {
            "probe": name,
            "seconds": float("nan") if isinstance(seen, str) else seen["seconds"],
            "failed": seen if isinstance(seen, str) else "",
            **made,
        }
        for name, seen in found.evidence.items()
    ]
    return _report(rows, probes, found.provenance)


def load(folder: str | Path | None = None) -> Report | None:
    """Load the kept results.

    Args:
        folder: by default the reader's own data folder.

    Returns:
        The report, or None where nothing is kept.

    Raises:
        ValueError: the file is damaged; the message names it.
    """
    path = file(folder)
    if not path.exists():
        return None
    report = Report.load(path)
    if not {"lines", "probes"} <= set(report.tables):
        raise ValueError(f"{path} holds no results of the ledger: its tables are {', '.join(report.tables)}")
    return report


def add(found: Ledger, folder: str | Path | None = None) -> Path:
    """Keep what a run measured: its rows replace those of the same claims, all others stay.

    Rows that nobody measured are not kept: they cost nothing to tell again.

    Args:
        found: the run.
        folder: by default the reader's own data folder.

    Returns:
        The path of the file.

    Raises:
        ValueError: the file cannot be written, or is damaged.
    """
    new, old = of(found, KEPT), load(folder)
    lines, probes = new.tables["lines"], new.tables["probes"]
    tables = {"lines": lines[lines["probe"].isin(probes["probe"])], "probes": probes}
    for name, key in (("lines", "id"), ("probes", "probe")):
        if old is not None:
            there = old.tables[name]
            tables[name] = _stack([there[~there[key].isin(tables[name][key])], tables[name]])
    return Report(new.name, TITLE, _label(), tables, [], new.provenance, view=VIEW).save(file(folder).parent)


def usable(claims: Claims, kept: Report | None) -> dict[str, Line]:
    """Select the kept results that count here and now; those whose probe failed do not.

    Args:
        claims: the whole ledger.
        kept: the kept results, or None.

    Returns:
        Lines by the id of their claim.
    """
    if kept is None:
        return {}
    now, rows = _made(provenance()), {row.id: row for row in claims.rows}
    if "+" in now["commit"]:  # a tree with changes is not the commit
        return {}
    found = {}
    failed = set(kept.tables["probes"].query("failed != ''")["probe"])
    for line in kept.tables["lines"].to_dict("records"):
        row = rows.get(line["id"])
        if row is None or any(line[key] != now[key] for key in SAME) or line["probe"] in failed:
            continue
        if _is_of(line, _row(Line(row, NOT_RUN))):
            found[row.id] = Line(row, line["status"], line["measured"], line["missing"])
    return found


def resume(
    claims: Claims,
    rows: Iterable[Claim],
    folder: str | Path | None = None,
    *,
    again: bool = False,
    talk: Callable[[str], None] | None = None,
    unsaved: Callable[[files.Unsaved], Any] | None = None,
) -> tuple[Ledger, int]:
    """Run the rows that are not kept yet, and keep the rows of each probe as it ends.

    An interrupted run continues where it stopped.

    Args:
        claims: the whole ledger.
        rows: the rows that are asked for.
        folder: by default the reader's own data folder.
        again: measure everything anew.
        talk: called with the name of each probe before it runs.
        unsaved: called with the error of every probe whose rows could not be kept; without it the error ends the run.

    Returns:
        The ledger of these rows, and how many of them were kept before.

    Raises:
        ValueError: as for `add`.
    """
    rows = tuple(rows)
    there = {} if again else usable(claims, load(folder))
    rest = [row for row in rows if row.id not in there]

    def keep(part: Ledger) -> None:
        try:
            add(part, folder)
        except files.Unsaved as error:
            if unsaved is None:
                raise
            unsaved(error)

    found = ledger.run(claims, rest, talk=talk, each=keep)
    new = {line.claim.id: line for line in found.lines}
    known = {row.id: there[row.id] for row in rows if row.id in there}
    return replace(found, lines=tuple({**known, **new}[row.id] for row in rows)), len(known)


def affordable(
    claims: Claims, seconds: float, costs: pd.DataFrame, rows: Iterable[Claim] | None = None
) -> tuple[tuple[Claim, ...], float]:
    """Select the rows that can be checked in a given time: the cheapest probes first, while they fit.

    Args:
        claims: the whole ledger.
        seconds: the time.
        costs: the table `probes` of an earlier run; a probe that is not in it, or that failed, is not chosen.
        rows: the rows to choose from; by default all.

    Returns:
        The rows, and the seconds that they take.

    >>> import pandas as pd
    >>> from labkit.study.claims import load
    >>> known = pd.DataFrame({"probe": ["reference.tables", "cliff.forwards"], "seconds": [0.01, 30.0]})
    >>> chosen, cost = affordable(load(), 20, known)
    >>> {CHECKS[row.check].probe.name for row in chosen}, cost
    ({'reference.tables'}, 0.01)
    """
    asked = [row for row in (claims.rows if rows is None else rows) if not ledger.needs_no_run(row)]
    probes = {row.id: CHECKS[name].probe.name for row in asked if (name := ledger.check_of(row)) in CHECKS}
    known = costs[costs["probe"].isin({*probes.values()})].dropna(subset=["seconds"])
    known = known.sort_values(["seconds", "probe"])
    known = known[known["seconds"].cumsum() <= seconds]
    names = set(known["probe"])
    chosen = tuple(row for row in asked if probes.get(row.id) in names)
    return chosen, float(known["seconds"].sum())


def quick(claims: Claims, rows: Iterable[Claim], seconds: float = 4.0) -> Ledger:
    """Run the cheapest checks of these rows within about `seconds`, and say of the others what was recorded.

    The recorded run of the whole ledger on this torch, or the nearest one, says what a check takes and what it found. A
    row from there says so behind what it measured, with hardware, torch and date; a row that is not there is run.

    Args:
        claims: the whole ledger.
        rows: the rows that are asked for.
        seconds: the time.

    Returns:
        The ledger of these rows.

    >>> from labkit.study.claims import load
    >>> claims = load()
    >>> found = quick(claims, claims.choose("05", ["t11.concept.*", "t11.trap.*"]), seconds=0.1)
    >>> [("recorded on" in line.measured) for line in found.lines].count(True) > 0
    True
    """
    rows, path = tuple(rows), recorded.ledger(hardware.torch_version())
    if path is None:
        return ledger.run(claims, rows)
    there = current(claims, Report.load(path))
    costs = there.tables["probes"].sort_values("date").drop_duplicates("probe", keep="last")
    known = {line["id"]: line for line in there.tables["lines"].to_dict("records")}
    cheap = {row.id for row in affordable(claims, seconds, costs, rows)[0]}

    def kept(row: Claim) -> bool:
        return row.id in known and row.id not in cheap and not ledger.needs_no_run(row)

    found = ledger.run(claims, [row for row in rows if not kept(row)])
    run = {line.claim.id: line for line in found.lines}
    for row in rows:
        if row.id not in run:
            line = known[row.id]
            measured = f"{line['measured']} ({_recorded_on(line)})".strip()
            run[row.id] = Line(row, line["status"], measured, line["missing"])
    return replace(found, lines=tuple(run[row.id] for row in rows))


def _is_of(line: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a kept or recorded row is about the claim as it reads now, with a status that its check can give
    today.
    """
    same = all(line.get(key) == row[key] for key in ("claim", "claimed", "check", "no"))
    return same and line["status"] in ledger.possible(row["check"], row["no"])


def _recorded_on(line: dict[str, Any]) -> str:
    return f"recorded on {line['hardware']}, torch {line['torch'].partition('+')[0]}, {line['date'][:10]}"


def standing(claims: Claims, found: Ledger | None = None, kept: Report | None = None) -> Report:
    """Say what is known of every claim: from `found`, otherwise from `kept` where it counts here, otherwise "not run".

    Args:
        claims: the whole ledger.
        found: a run.
        kept: the kept results.

    Returns:
        A report; its column `origin` says where each status is from. Rows that need no run (no run can tell, or
        hardware that is missing) say so.

    >>> from labkit.study.claims import load
    >>> report = standing(load())
    >>> set(report.frame["origin"]) <= {"needs no run", ""} and "holds" not in set(report.frame["status"])
    True
    """
    told = ledger.run(claims, [row for row in claims.rows if ledger.needs_no_run(row)])
    made = {name: "" for name in MADE}
    rows: dict[str, dict[str, Any]] = {}
    for row in claims.rows:
        rows[row.id] = {**_row(Line(row, NOT_RUN)), "origin": NOTHING, **made}
    counts = usable(claims, kept)
    for part in (of(told, TOLD), kept, None if found is None else of(found)):
        for line in [] if part is None else part.tables["lines"].to_dict("records"):
            if part is not kept or line["id"] in counts:
                rows[line["id"]] = {**rows[line["id"]], **line, "words": rows[line["id"]]["words"]}
    probes = [] if found is None else of(found).tables["probes"].to_dict("records")
    return _report(list(rows.values()), probes, told.provenance)


def filled(here: Report, other: Report) -> Report:
    """Fill the rows that were not run from another run.

    Args:
        here: see `standing`.
        other: a kept or recorded run.

    Returns:
        The report. The `origin` of a filled row says where and when it was made; a row that `other` lacks stays "not
        run", and so does one that does not count any more (see `current`).

    >>> from labkit.study.claims import load
    >>> claims = load()
    >>> before = of(ledger.run(claims, claims.choose(only=["streams.result.small-percent"])))
    >>> lines = filled(standing(claims), before).frame.set_index("id")
    >>> lines.loc["streams.result.small-percent", "origin"].startswith("recorded on")
    True
    """
    there = {line["id"]: line for line in other.tables["lines"].to_dict("records")}
    rows = []
    for row in here.tables["lines"].to_dict("records"):
        line = there.get(row["id"], {})
        if row["status"] == NOT_RUN and _is_of(line, row):
            row = {**row, **line, "words": row["words"], "origin": _recorded_on(line)}
        rows.append(row)
    return _report(rows, here.tables["probes"].to_dict("records"), here.provenance)


def current(claims: Claims, other: Report) -> Report:
    """Leave out the rows of a run that do not count any more; a note says how many these are.

    A row counts as long as its claim reads the same, the same check judges it, and this check can still give its
    status.

    Args:
        claims: the whole ledger.
        other: a kept or recorded run.

    Returns:
        The report.

    >>> from labkit.study.claims import load
    >>> claims = load()
    >>> before = of(ledger.run(claims, claims.choose(only=["streams.result.small-percent"])))
    >>> before.frame["status"] = "holds"  # as a labkit from before the word "cited" would have kept it
    >>> current(claims, before).notes
    ['1 of 1 rows left out: their claim or check has changed since they were measured; `labkit ledger` measures them']
    """
    now = {row.id: _row(Line(row, NOT_RUN)) for row in claims.rows}
    lines = other.tables["lines"]
    counts = [row["id"] in now and _is_of(row, now[row["id"]]) for row in lines.to_dict("records")]
    tables = {**other.tables, "lines": lines[counts].reset_index(drop=True)}
    gone = len(counts) - sum(counts)
    said = (
        f"{gone} of {len(counts)} rows left out: their claim or check has changed since they were measured; "
        "`labkit ledger` measures them"
    )
    return replace(other, tables=tables, notes=[*other.notes, *([said] if gone else [])])


def _row(line: Line) -> dict[str, Any]:
    claim = line.claim
    check = CHECKS.get(name := ledger.check_of(claim))
    return {
        "id": claim.id,
        "lesson": claim.lesson,
        "status": line.status,
        "claim": claim.claim,
        "words": claim.words,
        "claimed": claim.figure,
        "measured": line.measured,
        "missing": line.missing,
        "kind": claim.kind,
        "source": claim.source,
        "section": claim.section,
        "check": name,
        "no": claim.no,
        "probe": check.probe.name if check and not ledger.needs_no_run(claim) else "",
    }


def _label() -> str:
    return f"{LABEL}; cuda" if hardware.gpus() else LABEL  # for the rows that need GPUs


def _report(rows: list[dict[str, Any]], probes: list[dict[str, Any]], made: dict[str, Any]) -> Report:
    # named, so that tables without a row have their columns, too
    fields = ("probe", "seconds", "failed", *MADE)
    tables = {"lines": pd.DataFrame(rows), "probes": pd.DataFrame(probes, columns=fields)}
    return Report("ledger", TITLE, _label(), tables, [], made, view=VIEW)


def _made(facts: dict[str, Any]) -> dict[str, str]:
    """On what a row was made; a labkit installed without its repository has a version for a commit."""
    made = {name: str(facts.get(name, "")) for name in MADE}
    return {**made, "commit": made["commit"] or f"version {__version__}"}


def _stack(tables: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
