"""Communication beside computation on real ranks: who waits when, what it saves, and what three definitions say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.lessons.shared.streams import Timeline, overlap
from labkit.lessons.shared.streams.timeline import SPANS
from labkit.lessons.streams.declared import OVERLAP as ABOUT
from labkit.lessons.streams.on_ranks import (
    COMMUNICATE,
    COMPILED,
    COMPUTE,
    FUNCOL_LATE,
    FUNCOL_NOW,
    LATE,
    SEQUENCE,
    WAYS,
    measure,
)
from labkit.lessons.streams.shaped import shaped
from labkit.ranks import Ranks
from labkit.report import PerRank, Report, provenance
from labkit.timing import Measurement, check_rounds, compare, quantile

__all__ = ["WAYS", "run", "shaped", "timelines"]

BESIDE = (LATE, FUNCOL_LATE, FUNCOL_NOW, COMPILED)  # what is compared with the sequence


def run(
    ranks: Ranks,
    *,
    mib: float = 16.0,
    late: float = 60.0,
    rounds: int = 15,
    brief: bool = False,
    talk: bool = False,
) -> Report:
    """Time every way in two cases, in interleaved rounds: a small all-reduce with a late peer, and a large one.

    `brief` leaves out the late peer and what is compiled.

    Tables: `summary` (case, way, median, p10 and p90 in ms), `overlap` (case, way, definition, value, p10, p90),
    `verdicts` (each way against the one in sequence), `samples` in seconds, `spans` of one further round of two ways,
    in ms. Summary, overlap and verdicts are rank 0's, which waits for its peer; `samples` has every rank: one that
    comes late has nobody to wait for, and gains nothing. Raises ValueError for sizes that are not above 0, and
    RankError when a rank fails.

    >>> from labkit.lessons.streams import experiment as overlap
    >>> overlap.run(None, mib=0)
    Traceback (most recent call last):
        ...
    ValueError: mib must be a number above 0, got 0
    """
    check_rounds(rounds)
    for name, value in {"mib": mib, "late": late}.items():
        if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ValueError(f"{name} must be a number above 0, got {value!r}")
    cases = {} if brief else {f"a peer comes {late:g} ms late": (1 / 16, late / 1e3)}
    cases[f"{mib:g} MiB, nobody late"] = (mib, 0.0)
    ways = [way for way in WAYS if not (brief and way == COMPILED)]
    found = ranks.run(measure, cases, ways, rounds, talk, timeout=300)
    settings = {"backend": ranks.backend, "device": ranks.device, "threads": ranks.threads, "mib": mib}
    return _report(found, ranks.label, provenance(**settings, late=late))


# --- in the kernel ---


def _report(found: PerRank[dict[str, Any]], label: str, settings: dict[str, Any]) -> Report:
    rows = [
        (case, way, i, rank, seconds)
        for rank, seen in found.items()
        for case, ways in seen["samples"].items()
        for way, samples in ways.items()
        for i, seconds in enumerate(samples)
    ]
    samples = pd.DataFrame(rows, columns=["case", "way", "round", "rank", "seconds"])
    first = samples[samples["rank"] == 0].groupby(["case", "way"], sort=False)["seconds"]
    cases = list(dict.fromkeys(samples["case"]))
    ways = list(dict.fromkeys(samples["way"]))
    taken = {(c, w): Measurement(w, tuple(first.get_group((c, w)))) for c in cases for w in ways}
    summary = pd.DataFrame(
        [
            {"case": c, "way": w, "ms": m.median * 1e3, "p10": m.p10 * 1e3, "p90": m.p90 * 1e3, "n": m.n}
            for (c, w), m in taken.items()
        ]
    )
    spans = _spans(found)
    notes = [] if all(seen["right"] for seen in found) else ["a sum came out wrong"]
    pairs = [(case, way) for case in cases for way in BESIDE if way in ways]
    verdicts = [compare(taken[c, w], taken[c, SEQUENCE], case={"case": c}) for c, w in pairs]
    tables = {
        "summary": summary,
        "overlap": _definitions(taken, spans, label, cases),
        "verdicts": pd.DataFrame([verdict.row() for verdict in verdicts]),
        "samples": samples,
        "spans": spans,
    }
    view = "labkit.lessons.streams.figures:figure"
    return Report("overlap", ABOUT.title, label, tables, verdicts, settings, notes, view)


def _spans(found: PerRank[dict[str, Any]]) -> pd.DataFrame:
    """One round of each way, in ms from the first start of all ranks."""
    rows = [
        (case, way, rank, lane, name, kind, start, start, end, -1, "")
        for rank, seen in found.items()
        for case, ways in seen["spans"].items()
        for way, marks in ways.items()
        for lane, name, kind, start, end in marks
    ]
    table = pd.DataFrame(rows, columns=["case", "way", *SPANS])
    for _, group in table.groupby(["case", "way"]):
        zero = group["start"].min()
        for column in ("start", "work", "end"):
            table.loc[group.index, column] = (group[column] - zero) * 1e3
    return table


def timelines(report: Report, case: str) -> dict[str, Timeline]:
    """The recorded rounds of a case, by way. Raises ValueError for a case that was not run."""
    spans = report.tables["spans"]
    cases = list(dict.fromkeys(spans["case"]))
    if case not in cases:
        raise ValueError(f"case {case!r} was not run: there is {', '.join(map(repr, cases))}")
    found = {}
    for way in dict.fromkeys(spans["way"]):
        mine = spans[(spans["case"] == case) & (spans["way"] == way)][list(SPANS)].reset_index(drop=True)
        found[way] = Timeline(f"{case}, {way}", report.label, "ms", mine)
    return found


def _definitions(taken: Any, spans: Any, label: str, cases: Sequence[str]) -> pd.DataFrame:
    """Covered and folded from the recorded round of rank 0, saved from the medians of all rounds."""
    rows = []
    for case in cases:
        mine = spans[(spans["case"] == case) & (spans["way"] == LATE) & (spans["rank"] == 0)]
        parts = [
            [(row.start, row.end) for row in mine[mine["kind"] == kind].itertuples()]
            for kind in ("collective", "compute")
        ]
        sequence, *alone = (taken[case, way].median for way in (SEQUENCE, COMMUNICATE, COMPUTE))
        for name, share in (("covered", overlap.covered(*parts)), ("folded", overlap.folded(*parts))):
            rows.append((case, LATE, name, share, share, share))
        for way in (w for w in BESIDE if (case, w) in taken):
            share = overlap.saved(sequence, taken[case, way].median, *alone)
            # round by round, against the same parts: how far one round is from the next
            pairs = zip(taken[case, SEQUENCE].samples, taken[case, way].samples, strict=True)
            each = [overlap.saved(one, other, *alone) for one, other in pairs]
            rows.append((case, way, "saved", share, quantile(each, 0.1), quantile(each, 0.9)))
    return pd.DataFrame(rows, columns=["case", "way", "definition", "value", "p10", "p90"])
