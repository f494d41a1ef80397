"""The verdict of `oddrank look --eager`, on the terminal and as a page that loads nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from oddrank.counted import counted
from oddrank.look.agreement import CANNOT_TELL, WRONG, Answer, Region, Value
from oddrank.page import document, escape, table

__all__ = ["html", "text"]

COMPARED = (
    "Losses, outputs of compiled callables and gradients of parameters after the last backward of a step, up to the"
    " last recorded step: at most 8,192 numbers of each tensor, evenly spread. A difference is divided by the largest"
    " number of the tensor in eager."
)


def text(answer: Answer) -> str:
    """Return the verdict as text."""
    said = {"where": answer.where, "why": answer.why, "fix": answer.fix}
    lines = [f"{answer.kind}: {answer.said}", *(f"    {name}: {one}" for name, one in said.items() if one)]
    return "\n".join(textwrap.fill(line, 110, subsequent_indent=" " * 8) for line in lines)


def html(body: Mapping[str, Any], answer: Answer, values: Sequence[Value], regions: Sequence[Region]) -> str:
    """Return the page.

    Args:
        body: What `eager.json` holds.
        answer: The verdict.
        values: What was compared.
        regions: What was measured of each region.
    """
    look = "bad" if answer.kind in (WRONG, CANNOT_TELL) else "good"
    runs = [
        f"<a href='{escape(one['folder'])}/index.html'>{escape(one['name'])}</a> {one['seconds']:.0f} s"
        + f" {escape(one['failed'])}".rstrip()
        for one in body["runs"]
    ]
    measured = [
        (
            str(one.rank),
            str(one.step),
            f"{one.name} {one.under and f'with {one.under}'}".rstrip(),
            one.note or one.said,
            one.parts,
            one.setting,
        )
        for one in regions
    ]
    titles = ("rank", "step", "region", "result farthest apart", "first operator", "explained by")
    parts = [
        f"<h1>{escape(body['program'])}: compiled against eager</h1>",
        f"<p class='quiet'>{counted(body['ranks'], 'ranks')}. Each run has the same seeds: {', '.join(runs)}.</p>",
        f"<p class='{look}'>{escape(answer.kind[:1].upper() + answer.kind[1:])}: {escape(answer.said)}.</p>",
        *(f"<p>{name}: {escape(said)}.</p>" for name, said in
          (("Where", answer.where), ("Why", answer.why), ("Fix", answer.fix)) if said),
        "<h2>The largest difference in each step</h2>",
        table(("step", "kind", "compiled", "graphs in eager", "last bit changed", "of"), _steps(values)),
        *(["<h2>Regions, each with its own inputs</h2>", table(titles, measured)] if regions else []),
        "<h2>What was compared</h2>",
        f"<p class='quiet'>{COMPARED}</p>",
    ]  # fmt: skip
    return document(f"{body['program']}: oddrank look --eager", parts)


def _steps(values: Sequence[Value]) -> list[tuple[str, ...]]:
    rows = []
    for step, kind in dict.fromkeys((one.step, one.kind) for one in values):
        mine = [one for one in values if (one.step, one.kind) == (step, kind)]
        worst = max(mine, key=lambda one: one.compiled)
        most = [
            worst.compiled,
            max(one.captured or 0.0 for one in mine),
            max(one.nudged or 0.0 for one in mine),
        ]
        name = f"{worst.name}, rank {worst.rank}".lstrip(", ")
        rows.append((str(step), kind, *(f"{one:.2g}" for one in most), name))
    return rows
