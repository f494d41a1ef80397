"""Activation offloading as a picture and as a model to vary: time of a step and peak memory of each variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from labkit.lessons.compiled_streams.offload import OffloadGraphs, Rates, step
from labkit.lessons.shared.sliders import log_sliders
from labkit.lessons.shared.streams import simulate
from labkit.views import style
from labkit.views.style import Figure, Sheet, styled
from labkit.views.widget import InteractiveFigure

__all__ = ["Offload", "offload", "offload_table"]

LABEL = "simulated"
LEFT, ROW = 2.1, 0.34


def offload_table(graphs: Mapping[str, OffloadGraphs], rates: Rates | None = None) -> pd.DataFrame:
    """One row a variant: ms of a step, peak MiB, both relative to the first variant, and the share of copies hidden.

    All of it is simulated at the rates given; nothing was measured. Raises ValueError for no variants.
    """
    if not graphs:
        raise ValueError("there is no variant to compare")
    runs = {name: simulate(step(one, rates)) for name, one in graphs.items()}
    first = next(iter(runs.values()))
    return pd.DataFrame(
        [
            {
                "variant": name,
                "ms": run.makespan,
                "peak MiB": run.peak,
                "slower, %": 100 * (run.makespan / first.makespan - 1),
                "memory saved, %": 100 * (1 - run.peak / first.peak),
                "copies hidden, %": 100 * run.hidden() if run.communication() else np.nan,
            }
            for name, run in runs.items()
        ]
    ).set_index("variant")


def offload(graphs: Mapping[str, OffloadGraphs], rates: Rates | None = None) -> Offload:
    """The variants at the given rates, with a slider for each rate; the static twin shows the rates given here."""
    return Offload(graphs, rates or Rates())


class Offload(InteractiveFigure):
    """What `offload` returns: `figure` and `text` for the first rates, `widget` to change them."""

    def __init__(self, graphs: Mapping[str, OffloadGraphs], rates: Rates) -> None:
        self.graphs, self.rates = graphs, rates
        super().__init__(*self.draw(**vars(rates)))

    def draw(self, **rates: float) -> tuple[Figure, str]:
        """The figure for these rates and the line that says the same. Raises StreamError for a rate not above 0."""
        table = offload_table(self.graphs, Rates(**rates))
        return _figure(table, rates), _said(table)

    def _build(self, widgets: Any) -> Any:
        limits = {
            "tflops": ("products, Tflop/s", 1, 2000),
            "memory_gbytes": ("memory, GB/s", 50, 8000),
            "link_gbytes": ("link to the host, GB/s", 1, 900),
        }
        made = log_sliders(widgets, limits, vars(self.rates), step=0.02)
        return self.picture_with_controls(widgets, made, self.draw)


@styled
def _figure(table: pd.DataFrame, rates: Mapping[str, float]) -> Figure:
    sheet = Sheet()
    sheet.title(
        "What offloading costs and what it gives back",
        f"model at {rates['tflops']:.3g} Tflop/s, {rates['memory_gbytes']:,.0f} GB/s of memory, "
        f"{rates['link_gbytes']:.3g} GB/s to the host",
    )
    sheet.say(_said(table))
    height = ROW * len(table)
    top = sheet.top
    room = (sheet.width - LEFT - 0.8) / 2
    for i, (column, text, kind) in enumerate(
        (("ms", "step, ms (simulated)", "compute"), ("peak MiB", "peak memory, MiB (simulated)", "copy"))
    ):
        left = LEFT + i * (room + 0.6)
        ax = sheet.axes(left, room - 0.35, height, top=top)
        ax.barh(range(len(table)), table[column], color=style.STREAM_KINDS[kind][0], height=0.62)
        for y, value in enumerate(table[column]):
            ax.annotate(
                f"{value:.3g}" if value < 1000 else f"{value:.0f}", (value, y), xytext=(4, 0),
                textcoords="offset points", va="center", fontsize=style.SMALL, annotation_clip=False,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip
        ax.axvline(table[column].iloc[0], color=style.INK, linewidth=0.9, linestyle="--", zorder=1.5)
        ax.set(ylim=(len(table) - 0.4, -0.6), xlabel=text)
        ax.set_yticks(range(len(table)), table.index if i == 0 else [""] * len(table))
        ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    sheet.top = top + height + 0.5
    sheet.text("dashed: without offloading", fontsize=style.SMALL, color=style.QUIET)
    return sheet.finish(LABEL)


def _said(table: pd.DataFrame) -> str:
    return "; ".join(
        f"{name}: {row['ms']:.3g} ms, {row['peak MiB']:.0f} MiB" for name, row in table.iterrows()
    )
