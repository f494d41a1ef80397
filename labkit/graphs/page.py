"""Frames and diffs as HTML that reads on a code host and without a kernel: folded with <details>, no script."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.graphs.frame import Frame

__all__ = ["frame", "pre"]

MOST_LINES = 400  # of one stage on a page; the rest is counted
_PRE = "margin:2px 0 6px 0;padding:6px;background:#f7f7f7;color:#222;overflow-x:auto;font-size:12px;line-height:1.35"


def pre(text: str, most: int = MOST_LINES) -> str:
    """A block of code, cut to its first lines where it is long."""
    lines = text.splitlines()
    shown = "\n".join(lines[:most])
    if len(lines) > most:
        shown += f"\n... and {len(lines) - most:,} more lines"
    return f"<pre style='{_PRE}'>{html.escape(shown)}</pre>"


def frame(one: Frame, about: dict[str, str], rank: bool = False) -> str:
    """A frame as a folded block with its stages inside, each folded again."""
    title = f"rank {one.rank}: {one.title}" if rank else one.title
    parts: list[str] = []
    if one.breaks:
        parts.append(f"<div><i>graph break</i>{pre(str(one.breaks))}</div>")
    for name in one.stages:
        text = one.stage(name)
        head = f"<b>{name}</b> · {html.escape(about[name])} · {_lines(one.raw[name])}"
        parts.append(_details(head, pre(text)))
    parts += [
        f"<div style='color:#666'><b>{name}</b>: {html.escape(why)}</div>"
        for name, why in one.missing.items()
    ]
    head = f"<b>{html.escape(title)}</b>: {html.escape(one.said)}"
    return _details(head, f"<div style='margin-left:14px'>{''.join(parts)}</div>")


def _lines(text: Any) -> str:
    count = len(str(text).splitlines())
    return f"{count:,} line{'' if count == 1 else 's'}"


def _details(head: str, body: str) -> str:
    return f"<details><summary>{head}</summary>{body}</details>"
