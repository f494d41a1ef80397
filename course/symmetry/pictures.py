"""What the benches of lesson 08 draw: how two ranks end, which calls met, what each rank planned, and the losses."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from oddrank.source import annotate

from course.shared.colour_key import colour_key
from course.shared.timelines import timelines
from labkit.study.pictures import as_html
from labkit.views.style import INK, KINDS

__all__ = ["calls", "ends", "losses", "plans"]

# under black text, on a light and a dark page
GOOD, BAD, WAITS, NEVER = "#A1D99B", "#F4796B", "#FDB874", "#D9D9D9"


def ends(tries: Sequence[Any]) -> str:
    """The timelines of the tries on one axis, and below them the annotated source of the newest.

    Each result has 'ended', 'said', 'notes' and 'ends' (of `note_run`), and 'source' (a record of each rank).
    """
    frames: dict[str, list[pd.DataFrame]] = {"notes": [], "ends": []}
    for one in tries:
        began = one.result["notes"]["begin"].min()
        for name, times in (("notes", ["begin", "end"]), ("ends", ["at"])):
            frame = one.result[name].assign(drill=f"{_named(one)}: {one.result['ended']}")
            frame[times] -= began  # without the start of the process group
            frames[name].append(_traced(frame) if name == "notes" else frame)
    notes, ended = (pd.concat(found) for found in frames.values())
    figure = timelines(notes, ended, title="What each rank did, and how it ended")
    said = "".join(_said(f"{_named(one)}: {one.result['said']}") for one in tries if one.result["said"])
    return f"{as_html(figure)}{said}{annotate(tries[-1].result['source'])._repr_html_()}"


def calls(tries: Sequence[Any]) -> str:
    """Which calls met, the newest try first: a row a rank, a cell a call, with the number that the rank got.

    Each result has 'ended', 'said', and 'rows': of each rank, for each call (text, value or None, right or None).
    """
    blocks = []
    for one in reversed(tries):
        rows = []
        for rank, row in enumerate(one.result["rows"]):
            waits = next((i for i, (_, value, _) in enumerate(row) if value is None), None)
            cells = [_met(text, value, right, i == waits) for i, (text, value, right) in enumerate(row)]
            rows.append([(f"rank {rank}", ""), *cells])
        check = f"{one.values['check']}, " if one.values.get("check", "none") != "none" else ""
        blocks.append(
            f"<p><b>{html.escape(check + one.result['ended'])}</b></p>{_table(rows)}{_said(one.result['said'])}"
        )
    key = {"the right number": GOOD, "another number": BAD, "does not return": WAITS, "never made": NEVER}
    return "".join(blocks) + colour_key(key)


def plans(tries: Sequence[Any]) -> str:
    """The planned calls of the ranks beside each other, the newest try first, with the source of the newest.

    Each result has 'planned' (a list for each rank), 'ended' and 'source'.
    """
    blocks = []
    for i, one in enumerate(reversed(tries)):
        lists = list(one.result["planned"].values())
        rows = [[("call", ""), *((f"rank {rank}", "") for rank in range(len(lists)))]]
        for number, row in enumerate(zip_longest(*lists, fillvalue="no call"), 1):
            colour = GOOD if len(set(row)) == 1 else BAD
            rows.append([(str(number), ""), *((call, colour) for call in row)])
        blocks.append(
            f"<p><b>{html.escape(_named(one))}: over gloo it {html.escape(one.result['ended'])}</b></p>"
        )
        blocks.append(_table(rows) + (annotate(one.result["source"])._repr_html_() if i == 0 else ""))
    return "".join(blocks) + colour_key({"the same call": GOOD, "the ranks differ": BAD})


def losses(tries: Sequence[Any]) -> Figure:
    """The loss of each step on each rank, beside one process; each result has 'losses' (a list a rank) and 'right'."""
    figure, axes = plt.subplots(1, len(tries), figsize=(9, 3.4), sharey=True, squeeze=False)
    for ax, one in zip(axes[0], tries, strict=True):
        right, (first, second) = one.result["right"], one.result["losses"]
        ax.plot(range(1, len(right) + 1), right, color=INK, lw=5, alpha=0.25, label="one process")
        # where the ranks agree both show
        ax.plot(range(1, len(first) + 1), first, "o-", color=KINDS["compute"][0], ms=7, label="rank 0")
        ax.plot(range(1, len(second) + 1), second, "s--", color=KINDS["collective"][0], ms=3, label="rank 1")
        ax.set(title=_named(one).replace(", ", "\n") + f"\n{one.result['ended']}", xlabel="step")
        ax.set_xticks(range(2, len(right) + 1, 2))
        ax.title.set_fontsize(9)
    axes[0][0].set_ylabel("loss")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def _traced(notes: pd.DataFrame) -> pd.DataFrame:
    """The notes as they are drawn: Dynamo's part of a compile belongs to the compile, and a layer has its number."""
    kept: list[dict[str, Any]] = []
    for row in notes.to_dict("records"):
        before = kept[-1] if kept else None
        if (
            row["kind"] == "compile"
            and before
            and before["rank"] == row["rank"]
            and before["end"] == row["begin"]
        ):
            row["begin"] = kept.pop()["begin"]
            if kept and kept[-1]["kind"] == "compile" and kept[-1]["end"] == row["begin"]:
                row["begin"] = kept.pop()["begin"]
        if (
            row["kind"] == "python" and before and before["rank"] == row["rank"]
        ):  # what a layer gave this rank
            before["what"] = f"{before['what']}: {row['what']}"
            continue
        kept.append(row)
    return pd.DataFrame(kept, columns=notes.columns)


def _named(one: Any) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in one.values.items())


def _met(call: str, value: str | None, right: str | None, waits: bool) -> tuple[str, str]:
    if value is None:
        return call, WAITS if waits else NEVER
    return f"{call} → {value}", GOOD if value == right else BAD


def _said(words: str) -> str:
    return f'<pre style="white-space:pre-wrap;margin:2px 0">{html.escape(words)}</pre>' if words else ""


def _table(rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    lines = []
    for row in rows:
        cells = []
        for words, colour in row:
            look = f";background-color:{colour};color:#111111" if colour else ""
            cells.append(f'<td style="text-align:left{look}">{html.escape(words)}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"
