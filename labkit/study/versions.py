"""The ledger across torch versions: recorded runs, a table of claims by versions, and what differs between two."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pandas as pd

from labkit.report import Report
from labkit.study import ledger, recorded, results
from labkit.study.claims import Claims, load

__all__ = ["differing", "matrix", "moved", "record", "since", "text"]


def record(version: str, folder: Path | None = None) -> Report:
    """Load the recorded run of a torch version.

    Raises:
        ValueError: there is none; the message says how to make one.
    """
    there = recorded.ledgers(folder)
    if version not in there:
        known = ", ".join(there) or "none"
        raise ValueError(
            f"no ledger is recorded on torch {version} (there is: {known}); `labkit ledger --torch {version}` makes one"
        )
    return Report.load(there[version])


def matrix(claims: Claims, folder: Path | None = None) -> pd.DataFrame:
    """The status of every claim on every recorded torch.

    Args:
        claims: the whole ledger.
        folder: see `recorded.ledgers`.

    Returns:
        A row a claim by its id, a column a version; "not run" where a version has no result that counts any more. Rows
        that differ between versions come first, then those that changed before all of them, then the rest.
    """
    rows = pd.DataFrame(index=[row.id for row in claims.rows])
    unrun = ledger.run(claims, [row for row in claims.rows if ledger.needs_no_run(row)])
    told = pd.Series({line.claim.id: line.status for line in unrun.lines}, dtype=object)
    for version, path in recorded.ledgers(folder).items():
        lines = results.current(claims, Report.load(path)).frame.set_index("id")
        rows[version] = lines["status"].reindex(rows.index).fillna(told).fillna(results.NOT_RUN)
    differs = moved(rows)
    refuted = rows.isin(ledger.REFUTED).any(axis=1)
    order = (~differs * 2 + ~(differs | refuted)).sort_values(kind="stable").index
    return rows.loc[order]


def moved(rows: pd.DataFrame) -> pd.Series[bool]:
    """Whether a claim has one word about torch on one version and another word on another.

    Args:
        rows: what `matrix` gives.

    Returns:
        A bool for each row. Words such as "cannot tell here" are the machine's, and make no difference.

    >>> moved(pd.DataFrame({"2.13.0": ["holds", "holds"], "2.15.0": ["changed", "cannot tell here"]})).tolist()
    [True, False]
    """
    return rows.where(rows.isin((ledger.HOLDS, *ledger.REFUTED, ledger.READ))).nunique(axis=1) > 1


def since(claims: Claims, folder: Path | None = None) -> dict[str, str]:
    """The torch version since which a claim is not so, by id: the first recorded one after one on which it holds."""
    found: dict[str, str] = {}
    for name, row in matrix(claims, folder).iterrows():
        had = False
        for version, status in row.items():
            if status in (ledger.HOLDS, ledger.READ):
                had = True
                found.pop(name, None)
            elif status == ledger.CHANGED and had:
                found.setdefault(str(name), str(version))
    return found


def differing(a: Report, b: Report) -> pd.DataFrame:
    """The rows of two runs whose status differs, with both measurements.

    Args:
        a, b: runs of the ledger.

    Returns:
        A row a claim: id, claim, then status and measurement of each.
    """
    both = a.frame.merge(b.frame, on=["id", "claim"], suffixes=("_a", "_b"))
    both = both[both["status_a"] != both["status_b"]]
    for side in "ab":
        said = [both[f"{column}_{side}"].fillna("").astype(str) for column in ("measured", "missing")]
        both[f"measured_{side}"] = (said[0] + "; " + said[1]).str.strip("; ") if len(both) else said[0]
    columns = ["id", "lesson_a", "claim", "status_a", "measured_a", "status_b", "measured_b"]
    return both[columns].rename(columns={"lesson_a": "lesson"}).reset_index(drop=True)


def text(versions: tuple[str, str], folder: Path | None = None, width: int = 150) -> str:
    """The rows that differ between two recorded versions, as a text; of rows that still count, as in `matrix`.

    Args:
        versions: the two.
        folder: see `recorded.ledgers`.
        width: of a line, in characters.

    Raises:
        ValueError: one of them is not recorded.
    """
    pair = [results.current(load(), record(version, folder)) for version in versions]
    rows, shared = differing(*pair), len(pair[0].frame.merge(pair[1].frame, on=["id", "claim"]))
    parts = []
    for row in rows.to_dict("records"):
        parts.append(f"{row['id']}  ({row['lesson']})")
        parts += textwrap.wrap(row["claim"], width, initial_indent="  ", subsequent_indent="  ")
        for version, side in zip(versions, "ab", strict=True):
            start = f"  {version:<8}{row[f'status_{side}']:<18}  "
            parts += textwrap.wrap(
                row[f"measured_{side}"] or "-",
                width,
                initial_indent=start,
                subsequent_indent=" " * len(start),
            )
        parts.append("")
    made = "; ".join(
        f"torch {v}: {r.provenance.get('hardware', '?')}, {str(r.provenance.get('date', '?'))[:10]}"
        for v, r in zip(versions, pair, strict=True)
    )
    return "\n".join([*parts, f"{len(rows)} of {shared} rows differ ({made})"])
