"""The strip on the page of `oddrank look`, to zoom, move and search: plain JavaScript, in the page itself."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pandas as pd

from oddrank.places import place
from oddrank.record import Tables
from oddrank.record.timeline import collective_op
from oddrank.strip import kinds as style
from oddrank.strip.forwards import Forward, take_forward, typical
from oddrank.strip.words import FOOTNOTE, NOTHING, finding, plural, strip_text

__all__ = ["viewer"]

STEPS, RANKS, ITEMS, REASONS = (
    12,
    32,
    6_000,
    8,
)  # the most that the page holds; items are bars and breaks of a step

STYLE = """
.viewer{margin:8px 0}.viewer canvas{width:100%;display:block;touch-action:pan-y;cursor:grab}.said{white-space:pre-line}
.viewer .row{display:flex;flex-wrap:wrap;gap:8px;align-items:center;margin:6px 0;font-size:13px}
.viewer input,.viewer select,.viewer button{font:inherit;color:inherit;background:var(--shade);
border:1px solid var(--quiet);border-radius:4px;padding:2px 8px}.viewer input{width:16em}
.viewer i{display:inline-block;width:14px;height:10px;margin-right:5px}.viewer .key{gap:4px 16px}
.viewer .detail{min-height:3em;font-size:13px;background:var(--shade);padding:4px 8px;overflow-wrap:anywhere}
"""

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
HINT = (
    "Point at a bar or a break. Drag moves; Ctrl + wheel, a double click, + and - zoom; Home shows all; Enter goes to"
    " the next match, Shift + Enter to the one before."
)
CONTROLS = """<button class='in' aria-label='zoom in'>+</button><button class='out' aria-label='zoom out'>−</button>
<button class='whole'>all</button><input class='search' type='search' placeholder='search a name or a place'
aria-label='search'><span class='found' aria-live='polite'></span>"""


def viewer(record: Tables) -> str:
    """Return the strip as a part of a page, to zoom, move and search; without JavaScript, in words.

    Args:
        record: The steps of all ranks.
    """
    segments = record.segments.frame()
    segments = segments[segments["forward"] >= 0]
    if segments.empty:
        return f"<p>{NOTHING}</p>"
    first, every = typical(segments), sorted(int(n) for n in set(segments["forward"]))
    numbers = sorted([first, *(number for number in every if number != first)][:STEPS])
    runs = {number: take_forward(record, number) for number in numbers}
    ranks, unit = runs[first].ranks[:RANKS], runs[first].unit
    texts: dict[str, int] = {}
    steps = [_step(record, number, run, ranks, texts) for number, run in runs.items()]
    drawn = [
        {"colour": colour, "ink": style.ink_on(colour), "words": words, "shape": style.SHAPES[kind]}
        | {"thin": kind == "transfer", "hatched": kind in style.HATCHES}
        for kind, (colour, words) in style.KINDS.items()
    ]
    data = {"unit": unit, "hint": HINT, "ranks": ranks, "kinds": drawn, "steps": steps, "texts": list(texts)}
    body = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":  # nothing in a name can end the script
        body = body.replace(sign, f"\\u{ord(sign):04x}")
    options = (
        f"<option{' selected' * (n == first)}>{unit} {n}: {run.duration:.3g} ms</option>"
        for n, run in runs.items()
    )
    left = {unit: len(every) - len(numbers), "rank": len(runs[first].ranks) - len(ranks)}
    more = " and ".join(plural(count, f"more {name}") for name, count in left.items() if count)
    note = FOOTNOTE + (f" Not in this figure: {more}." if more else "")
    seen = {kind for run in runs.values() for part in (run.segments, run.transfers) for kind in part["kind"]}
    key = {words: f"background:{colour}" for kind, (colour, words) in style.KINDS.items() if kind in seen}
    if any(len(run.marks) for run in runs.values()):
        key["graph break"] = "background:var(--ink);width:2px"
    swatches = (f"<span><i style='{look}'></i>{html.escape(words)}</span>" for words, look in key.items())
    return (
        f"<style>{STYLE}</style><section class='viewer' hidden><p class='said'></p>"
        f"<div class='row'><select aria-label='{unit}'>{''.join(options)}</select>{CONTROLS}</div>"
        f"<div class='row key'>{''.join(swatches)}</div>"
        f"<canvas tabindex='0' role='img'></canvas>"
        f"<div class='detail' aria-live='polite'></div><p class='quiet'>{note}</p>"
        f"<script type='application/json'>{body}</script><script>{SCRIPT}</script></section>"
        f"<noscript><pre>{html.escape(strip_text(runs[first]))}</pre></noscript>"
    )


def _step(
    record: Tables, number: int, run: Forward, ranks: list[int], texts: dict[str, int]
) -> dict[str, Any]:
    """One step as numbers: times in ms, and texts by their place in `texts`."""
    kinds, lane = list(style.KINDS), {rank: i for i, rank in enumerate(ranks)}
    regions = {
        (row.rank, row.id): ", ".join(filter(None, (f"in {row.name} [{row.id}]", row.place)))
        for row in record.compiles
    }
    calls = [one for one in record.ranges if one.kind == "collective" and one.forward == number]
    origin = min(one.start_us for one in record.segments if one.forward == number)
    details = {
        (one.rank, round(one.start_us - origin)): (
            place(one.file, one.line or None, one.func),
            one.shapes,
            one.group and f"group {one.group}",
        )
        for one in calls
    }
    rows = pd.concat([run.segments, run.transfers], ignore_index=True)
    rows = rows[rows["rank"].isin(ranks)].assign(length=rows["end"] - rows["start"])
    rows = rows.assign(minor=~rows["kind"].isin(["collective", "compile"]))
    rows = rows.sort_values(["minor", "length"], ascending=[True, False], kind="stable")
    marks = run.marks[run.marks["rank"].isin(ranks)]
    every = len(rows) + len(marks)
    marks = marks.head(ITEMS)
    kept = rows.head(ITEMS - len(marks))
    why = {reason.number: reason for reason in run.reasons}
    items: list[tuple[int, int, float, float, str, str]] = []
    for row in kept.itertuples():
        name, more = row.name, [regions.get((row.rank, row.compile), row.compile)]
        if row.kind in ("collective", "transfer"):
            name = collective_op(row.name)
            more = [*more, row.name, *details.get((row.rank, round(row.start * 1e3)), [])]
        told = " · ".join(filter(None, more))
        items.append((lane[row.rank], kinds.index(row.kind), row.start, row.length, name, told))
    for row in marks.itertuples():
        reason = why[row.number]
        items.append((lane[row.rank], -1, row.at, 0.0, f"{row.number}: {reason.reason}", reason.place))
    said = [finding(run) + "."]
    said += ["The first difference between ranks is outlined."] * bool(run.difference)
    numbered = [f"Graph break {n}: {reason.reason}, {reason.place}" for n, reason in why.items() if n]
    said += numbered[:REASONS] + [f"and {len(numbered) - REASONS} other breaks"] * (len(numbered) > REASONS)
    if len(items) < every:
        share = 1 - kept["length"].sum() / rows["length"].sum()
        what = (
            f"{every - len(items):,} of {every:,} bars and breaks, the shortest, with {share:.1%} of the time"
        )
        said.append(f"Left out: {what}.")
    outline = run.difference.spans if run.difference else {}
    return {
        "duration": run.duration,
        "said": "\n".join(said),
        "items": [
            (*where, round(start, 4), round(length, 4), *(texts.setdefault(t, len(texts)) for t in words))
            for *where, start, length, name, more in items
            for words in [(name, more)]
        ],
        "outline": [(lane[rank], start, end) for rank, (start, end) in outline.items() if rank in lane],
    }
