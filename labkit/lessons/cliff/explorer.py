"""The explorer of the cliff's report: a fragment strip with controls for variant, blocks, rank and piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.views.forwards import SEGMENTS, take_forward, variant_record
from labkit.views.strip import described, strip, strip_text, strips
from labkit.views.style import Figure, short_name
from labkit.views.tables import need, table_of
from labkit.views.widget import InteractiveFigure

__all__ = ["Explorer", "explorer", "explorer_static"]


def explorer_static(report: Any) -> tuple[Figure, str]:
    """Draw the whole forward of every variant.

    Args:
        report: with the table `segments`.

    Returns:
        The figure, and one line that says the same.

    Raises:
        ValueError: the report has no segments.

    >>> import pandas as pd
    >>> columns = ["variant", "rank", "forward", "kind", "start_us", "end_us", "compile_id", "name"]
    >>> segments = pd.DataFrame([("A", 0, 0, "compute", 0.0, 900.0, "", "aten::mm")], columns=columns)
    >>> explorer_static({"segments": segments})[1]
    'A: no region, no collective, no break'
    """
    records = _records(report)
    label = str(getattr(report, "label", ""))
    figure = strips(records, forward="typical", window="whole", label=label)
    said = []
    for name, record in records.items():
        run = take_forward(record, "typical")
        said.append(f"{short_name(name)}: {'nothing was recorded' if run.empty else described(run)}")
    return figure, " | ".join(said)


def explorer(report: Any) -> Explorer:
    """Show a fragment strip with controls for variant, number of blocks, rank and zoom.

    As the last line of a cell it shows the widget, and below it the static figure and its line of text, which stay in a
    saved notebook, on a code host, and where ipywidgets is missing.

    Args:
        report: with the table `segments`.

    Returns:
        The interactive figure.

    Raises:
        ValueError: the report has no segments.
    """
    return Explorer(report)


class Explorer(InteractiveFigure):
    """The interactive figure that `explorer` returns."""

    def __init__(self, report: Any) -> None:
        super().__init__(*explorer_static(report))
        self.report = report

    def draw(
        self,
        variant: str,
        blocks: int | None = None,
        rank: int | None = None,
        piece: tuple[float, float] = (0.0, 100.0),
        block: bool = False,
    ) -> tuple[Figure, str]:
        """Draw the strip of one choice.

        Args:
            variant: its name.
            blocks: number of blocks; None for all.
            rank: None for all ranks.
            piece: start and end in percent of the forward.
            block: magnify a typical block instead.

        Returns:
            The figure and its text.
        """
        record = variant_record(self.report, variant, blocks)
        ranks = None if rank is None else [rank]
        run = take_forward(record, "typical", ranks)
        whole = piece[0] <= 0 and piece[1] >= 100
        window: Any = "block" if block else "whole"
        if not block and not whole and not run.empty:
            window = tuple(run.duration * edge / 100 for edge in piece)
        label = str(getattr(self.report, "label", ""))
        return strip(run, window=window, label=label), strip_text(run)

    def _build(self, widgets: Any) -> Any:
        segments = table_of(self.report, "segments")
        assert segments is not None  # explorer_static has drawn them
        variants = [str(v) for v in pd.unique(segments["variant"])]
        sizes: list[Any] = (
            sorted(int(n) for n in set(segments["blocks"])) if "blocks" in segments.columns else []
        )
        ranks = sorted(int(rank) for rank in set(segments["rank"]))
        wide = widgets.Layout(width="420px")
        variant = widgets.ToggleButtons(
            options=variants,
            description="variant",
            style={"button_width": "48px", "description_width": "60px"},
            layout=widgets.Layout(display="flex", width="auto"),  # else the buttons stand below their label
        )
        blocks = widgets.Dropdown(options=sizes or [None], description="blocks")
        blocks.value = blocks.options[-1]
        blocks.layout.display = None if len(sizes) > 1 else "none"
        # not None for all ranks: JupyterLab then sometimes shows an empty list
        rank = widgets.Dropdown(
            options=[("all ranks", "all"), *((f"rank {r}", r) for r in ranks)], description="rank"
        )
        block = widgets.Checkbox(value=True, description="magnify a typical block", indent=False)
        piece = widgets.FloatRangeSlider(
            value=(0.0, 100.0), min=0.0, max=100.0, step=0.5, description="zoom, %", continuous_update=False,
            readout_format=".1f", disabled=True, layout=wide,
        )  # fmt: skip

        def draw(rank: Any, **choices: Any) -> tuple[Figure, str]:
            piece.disabled = block.value
            return self.draw(rank=None if rank == "all" else rank, **choices)

        controls = {"variant": variant, "blocks": blocks, "rank": rank, "block": block, "piece": piece}
        rows = [widgets.HBox([variant, blocks, rank]), widgets.HBox([block, piece])]
        return self.picture_with_controls(widgets, controls, draw, rows=rows)


def _records(report: Any) -> dict[str, Any]:
    """One record for each variant, with the largest number of blocks."""
    segments = table_of(report, "segments")
    if segments is None:
        raise ValueError("this report has no table 'segments': there is nothing to explore")
    need(segments, ["variant", *SEGMENTS], "segments")
    if segments.empty:
        raise ValueError("table 'segments' of this report is empty: there is nothing to explore")
    variants: Sequence[str] = [str(v) for v in pd.unique(segments["variant"])]
    found = {}
    for variant in variants:
        mine = segments[segments["variant"] == variant]
        blocks = int(mine["blocks"].max()) if "blocks" in mine.columns else None
        found[variant] = variant_record(report, variant, blocks)
    return found
