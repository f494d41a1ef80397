"""A browser of compiled frames by stage, rank and frame: as text, or drawn where the stage is a graph."""

from __future__ import annotations

import html
from typing import Any

from matplotlib.patches import Rectangle

from course.reading.drawing import draw_graph
from labkit.records.frame import GRAPHS, STAGES, Frame, Frames, code_block
from labkit.views.style import Figure, Sheet, cut, styled
from labkit.views.widget import InteractiveFigure

__all__ = ["Stages"]


class Stages(InteractiveFigure):
    """Every stage of every frame, with tabs for stages and ranks.

    As the last line of a cell it shows the widget, and below it a table of what there is and a line of text, which stay
    in a saved notebook.

    Args:
        frames: of `labkit.inspect` or a record.

    Raises:
        ValueError: there are no frames.
    """

    def __init__(self, frames: Frames) -> None:
        _need(frames)
        several = len(frames.ranks) > 1
        said = [f"{f'rank {f.rank}: ' if several else ''}{f.title}: {f.said}" for f in frames]
        more = f" | and {len(said) - 6} more frames" if len(said) > 6 else ""
        super().__init__(_table(frames), " | ".join(said[:6]) + more)
        self.frames = frames

    def show(self, frame: Frame, stage: str, whole: bool = False) -> str:
        """One stage of one frame as HTML.

        Args:
            frame: the frame.
            stage: its name; for a missing one the text says why.
            whole: without folding.

        Returns:
            The HTML.
        """
        try:
            body = code_block(frame.stage(stage, whole), most=2000)
        except ValueError as error:
            body = f"<div>{html.escape(str(error))}</div>"
        about = f"<b>{html.escape(frame.title)}</b> · {stage}: {html.escape(STAGES[stage])}"
        why = (
            f"<details><summary>graph break</summary>{code_block(str(frame.breaks))}</details>"
            if frame.breaks
            else ""
        )
        return f"<div>{about}</div>{why}{body}"

    def _build(self, widgets: Any) -> Any:
        first = self.frames[0]
        stage = widgets.ToggleButtons(
            options=list(STAGES), value=first.stages[0] if first.stages else "source", description="stage",
            style={"button_width": "auto"},
        )  # fmt: skip
        rank = widgets.ToggleButtons(
            options=[(f"rank {r}", r) for r in self.frames.ranks],
            description="rank",
            style={"button_width": "70px"},
        )
        rank.layout.display = None if len(self.frames.ranks) > 1 else "none"
        frame = widgets.Dropdown(description="frame", layout=widgets.Layout(width="600px"))
        whole = widgets.Checkbox(value=False, description="show what is folded", indent=False)
        drawn = widgets.Checkbox(value=False, description="draw the graph", indent=False)
        text = widgets.HTML()
        picture = widgets.Image(format="png", layout=widgets.Layout(max_width="100%", display="none"))

        def choose(_: Any = None) -> None:
            mine = self.frames.of_rank(rank.value)
            # the same place in the list, so that changing the rank shows the same frame of the other one
            now = frame.index or 0
            frame.options = [(f.title, i) for i, f in enumerate(mine)]
            frame.index = min(now, len(mine) - 1)
            redraw()

        def redraw(_: Any = None) -> None:
            if frame.value is None:
                return
            mine = self.frames.of_rank(rank.value)[frame.value]
            drawn.disabled = stage.value not in GRAPHS or stage.value not in mine.raw
            draws = drawn.value and not drawn.disabled
            picture.layout.display = None if draws else "none"
            if draws:
                picture.value = draw_graph(mine, stage.value, label=self.frames.label).png()
            text.value = self.show(mine, stage.value, whole.value)

        rank.observe(choose, "value")
        for control in (stage, frame, whole, drawn):
            control.observe(redraw, "value")
        choose()
        rows = [widgets.HBox([rank, frame]), stage, widgets.HBox([whole, drawn])]
        box = widgets.VBox([*rows, picture, text])
        self.remember_to_close([stage, rank, frame, whole, drawn], [rows[0], rows[2], picture, text, box])
        return box


def _need(frames: Any) -> None:
    if not isinstance(frames, Frames):
        raise ValueError(f"this shows Frames (of inspect, or rec.frames), and got a {type(frames).__name__}")
    if not len(frames):
        raise ValueError(f"there is no frame to show: {'; '.join(frames.notes) or 'nothing was compiled'}")


@styled
def _table(frames: Frames, most: int = 14) -> Figure:
    """Frames down, stages across: the operations of a graph, a tick for another text, a dash where there is none."""
    sheet = Sheet()
    sheet.title(
        f"What there is to read: {frames.counts}",
        "Operations of each graph; ✓ for another text; – where there is none.",
    )
    shown = list(frames)[:most]
    left, high = 3.3, 0.27
    step = (sheet.width - left - 0.75) / len(STAGES)  # the last name leans over the edge of its column
    ax = sheet.axes(0, sheet.width, 0.75 + high * len(shown))
    ax.set(xlim=(0, sheet.width), ylim=(0.75 + high * len(shown), 0))
    ax.set_axis_off()
    several = len(frames.ranks) > 1
    for k, name in enumerate(STAGES):
        ax.text(left + step * (k + 0.5), 0.7, name, rotation=32, ha="left", va="bottom", fontsize=8)
    for i, frame in enumerate(shown):
        y = 0.75 + high * (i + 0.5)
        title = f"rank {frame.rank}: {frame.title}" if several else frame.title
        ax.text(0.15, y, cut(title, left - 0.25, 8.5), va="center", fontsize=8.5, parse_math=False)
        for k, name in enumerate(STAGES):
            there = name in frame.raw
            look = {"facecolor": "#D6E6F2" if there else "#FFFFFF", "edgecolor": "#BBBBBB", "linewidth": 0.6}
            ax.add_patch(
                Rectangle((left + step * k + 0.03, y - high * 0.42), step - 0.06, high * 0.84, **look)
            )
            said = _cell(frame, name) if there else "–"
            ax.text(left + step * (k + 0.5), y, said, ha="center", va="center", fontsize=8)
        sheet.say(f"{title} has {', '.join(frame.stages) or 'no stage'}")
    if len(frames) > most:
        sheet.text(f"and {len(frames) - most} more frames")
    return sheet.finish(frames.label)


def _cell(frame: Frame, stage: str) -> str:
    if stage not in GRAPHS:
        return "✓"
    return f"{sum(node.kind in ('op', 'collective', 'wait') for node in frame.nodes(stage)):,}"
