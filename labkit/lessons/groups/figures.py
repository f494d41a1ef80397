"""A meeting of processes over time: when each came, how its wait ended, and which key appeared when."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import Rectangle

from labkit.lessons.shared.keys import mark, patch
from labkit.report import Report
from labkit.views import style
from labkit.views.style import Figure, Sheet, cut, styled, text_width

__all__ = ["figure"]

LANE = 0.27
TOGETHER_S = 0.1  # who comes within this time comes together
HIDDEN = "(not listed)"
WAIT, GOOD, BAD = style.KINDS["wait"][0], "#009E73", "#D55E00"
MARKS = {"joined": ("o", GOOD), "error": ("X", BAD), "still waiting": (">", style.INK)}


@styled
def figure(report: Report) -> Figure:
    """One lane a process, from its coming to the end of its wait, and one a key, marked whenever it changes.

    `report` is what `labkit.lessons.groups.experiment.meet` returns.
    """
    processes, keys = report.tables["processes"], report.tables["keys"]
    names = list(dict.fromkeys(keys["key"]))
    sheet = Sheet()
    sheet.title(finding(report), "Above, each process from its coming to the end of its call.")
    said = [f"rank {p.rank} of {p.world_size}" for p in processes.itertuples()]
    left = 0.3 + min(4.0, max(text_width(text, style.SMALL) for text in [*said, *names]))
    width = sheet.width - left - 0.4
    end = max([float(processes["ended"].max()), *keys["seconds"]]) * 1.04
    lanes = len(said) + len(names) + 0.6
    ax = sheet.axes(left, width, LANE * lanes)
    ax.set(xlim=(0, end), ylim=(lanes, 0), yticks=[], xlabel="time, s")
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    for i, process in enumerate(processes.itertuples()):
        _lane(ax, i + 0.5, said[i])
        bar = Rectangle((process.came, i + 0.2), process.ended - process.came, 0.6, facecolor=WAIT)
        bar.set_gid(f"process {process.process}")
        ax.add_patch(bar)
        shape, colour = MARKS[process.outcome]
        ax.plot([process.ended], [i + 0.5], shape, color=colour, markersize=8, clip_on=False, zorder=4)
        _beside(ax, process, i + 0.5, process.said or _ended(process), end, width)
    ax.axhline(len(said) + 0.3, color=style.QUIET, linewidth=0.8)
    for i, name in enumerate(names):
        y = len(said) + 0.6 + i + 0.5
        _lane(ax, y, cut(name, left - 0.3, style.SMALL))
        mine = keys[keys["key"] == name]
        ax.plot(mine["seconds"], [y] * len(mine), "|", color=style.INK, markersize=11, markeredgewidth=2)
        values = [_value(value) for value in mine["value"]]
        shown = " → ".join(values)
        late = mine["seconds"].iloc[-1]
        on_left = late > 0.6 * end
        ax.annotate(
            shown, (mine["seconds"].iloc[0] if on_left else late, y), xytext=(-7 if on_left else 7, 0),
            textcoords="offset points", ha="right" if on_left else "left", va="center", fontsize=7.5,
            color=style.QUIET, parse_math=False,
        )  # fmt: skip
    sheet.top += 0.5
    marks = [(what, mark(*look, 7)) for what, look in MARKS.items() if what in set(processes["outcome"])]
    sheet.legend([("in the call", patch(WAIT)), *marks, ("key appears or changes", _tick_key)])
    for text, process in zip(said, processes.itertuples(), strict=True):
        more = process.said or (process.value if isinstance(process.value, str) else "")
        sheet.say(
            f"{text} came at {process.came:.2f} s, {process.outcome} at {process.ended:.2f} s"
            + (f" ({more})" if more else "")
        )
    firsts = ", ".join(f"{r.key} at {r.seconds:.2f} s" for r in keys.drop_duplicates("key").itertuples())
    sheet.say(f"keys: {firsts}" if names else "")
    hidden = f"{HIDDEN}: keys that the store counts and leaves out of its list"
    return sheet.finish(report.label, "; ".join([*([hidden] if HIDDEN in names else []), *report.notes]))


def _ended(process: Any) -> str:
    """How a call ended, and what it gave where that is a text."""
    said = f": {process.value}" if isinstance(process.value, str) else ""
    return f"{process.outcome} after {process.ended - process.came:.2f} s{said}"


def finding(report: Report) -> str:
    """The outcome in a sentence: who came last, or who waited how long for nothing."""
    processes = report.tables["processes"]
    bad = processes[processes["outcome"] != "joined"]
    if bad.empty:
        last = processes.loc[processes["came"].idxmax()]
        longest = (processes["ended"] - processes["came"]).max()
        if last["came"] - processes["came"].min() < TOGETHER_S:
            return f"{len(processes)} processes come together and are through after {longest:.2f} s"
        return f"Rank {last['rank']} comes last, at {last['came']:.2f} s; the others wait for it, up to {longest:.2f} s"
    waits = sorted(round(float(wait), 1) for wait in bad["ended"] - bad["came"])
    span = f"{waits[0]:g} s" if waits[0] == waits[-1] else f"{waits[0]:g} to {waits[-1]:g} s"
    rest = f", {len(processes) - len(bad)} come back" if len(bad) < len(processes) else ""
    return f"{len(bad)} of {len(processes)} processes do not get in, after {span}{rest}"


def _value(value: bytes) -> str:
    """A short value as it is, a long one as its size.

    >>> _value(b"4"), _value(bytes(186))
    ('4', '186 bytes')
    """
    text = value.decode("ascii", "replace")
    return text if len(value) <= 12 and text.isprintable() else f"{len(value)} bytes"


def _lane(ax: Any, y: float, text: str) -> None:
    ax.annotate(
        text, xy=(0, y), xycoords=ax.get_yaxis_transform(), xytext=(-8, 0), textcoords="offset points",
        ha="right", va="center", fontsize=style.SMALL, parse_math=False,
    )  # fmt: skip


def _beside(ax: Any, process: Any, y: float, text: str, end: float, width: float) -> None:
    """The outcome in words, where there is most room: in the bar, to the right of it, or to the left."""
    start, stop = process.came / end * width, process.ended / end * width  # inches
    rooms = {"in": stop - start - 0.25, "right": width - stop - 0.2, "left": start - 0.2}
    needed = text_width(text, 7.5)
    place = next((name for name, room in rooms.items() if needed <= room), max(rooms, key=rooms.__getitem__))
    x, shift = {"in": (process.came, 5), "right": (process.ended, 9), "left": (process.came, -5)}[place]
    ax.annotate(
        cut(text, rooms[place], 7.5), (x, y), xytext=(shift, 0), textcoords="offset points", va="center",
        ha="right" if place == "left" else "left", fontsize=7.5, parse_math=False,
    )  # fmt: skip


def _tick_key(ax: Any, x: float, y: float) -> None:
    ax.plot([x + 0.1, x + 0.1], [y, y + 0.13], color=style.INK, linewidth=2)
