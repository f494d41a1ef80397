"""A cost model with its constants on sliders: step time and the communication's share, by the number of ranks."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.ticker import PercentFormatter

from labkit.lessons.scale.figures import (
    COMPUTE,
    HIGH,
    MODEL,
    TALK,
    TOTAL,
    curve_of,
    half_at,
    key,
    labelled,
    rank_axis,
)
from labkit.lessons.shared.costs import ALGORITHMS, Compute, Link, step
from labkit.lessons.shared.sliders import log_sliders
from labkit.views import style
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import table
from labkit.views.widget import InteractiveFigure

__all__ = ["ScaleExplorer", "scale_explorer"]


def scale_explorer(
    report: Any,
    alpha: float = 10.0,
    bandwidth: float = 25.0,
    rate: float | None = None,
    overhead: float | None = None,
    algorithm: str = "ring",
) -> ScaleExplorer:
    """Set a link's alpha (us a step) and bandwidth (GB/s), a rank's rate (Gflop/s) and overhead (us), and see a step.

    The messages and flops are those of the report's traces; a rate and an overhead that are not given are the report's.
    Raises ValueError for a report without worlds, and for constants that are none.
    """
    return ScaleExplorer(report, alpha, bandwidth, rate, overhead, algorithm)


class ScaleExplorer(InteractiveFigure):
    """What `scale_explorer` returns: `figure` and `text` for the first constants, `widget` to change them."""

    def __init__(
        self,
        report: Any,
        alpha: float,
        bandwidth: float,
        rate: float | None,
        overhead: float | None,
        algorithm: str,
    ) -> None:
        shown = table(report, "worlds", ["world_size", "rank", "flops"])
        single = table(report, "collectives", ["world_size", "rank", "bytes"])
        self.flops = shown[shown["rank"] == 0].set_index("world_size")["flops"].sort_index()
        if self.flops.empty:
            raise ValueError("this report has no world to draw: trace at least one")
        single = single[single["rank"] == 0]
        self.messages = {w: list(single.loc[single["world_size"] == w, "bytes"]) for w in self.flops.index}
        constants = table(report, "constants", ["link", "overhead_us", "gflop_per_s"])
        work = constants[constants["link"] == "work"]
        own = work.iloc[0].to_dict() if len(work) else {"overhead_us": 0.0, "gflop_per_s": 100.0}
        self.label = labelled(report, MODEL, "messages from", None)
        self.first: dict[str, Any] = {
            "alpha": alpha, "bandwidth": bandwidth, "rate": own["gflop_per_s"] if rate is None else rate,
            "overhead": own["overhead_us"] if overhead is None else overhead, "algorithm": algorithm,
        }  # fmt: skip
        super().__init__(*self.draw(**self.first))

    def draw(
        self, alpha: float, bandwidth: float, rate: float, overhead: float, algorithm: str
    ) -> tuple[Figure, str]:
        """The figure for these constants and the line that says the same. Raises ValueError for what is no constant."""
        if not bandwidth > 0:
            raise ValueError(f"bandwidth must be above 0 (GB/s), got {bandwidth!r}")
        link, compute = Link(alpha * 1e-6, 1e-9 / bandwidth), Compute(overhead * 1e-6, rate * 1e9)
        found = {
            int(w): step(compute, link, int(w), float(f), self.messages[w], algorithm=algorithm)
            for w, f in self.flops.items()
        }
        curve = pd.DataFrame(
            [(w, s.compute * 1e3, s.communication * 1e3, s.seconds * 1e3, s.share) for w, s in found.items()],
            columns=["world_size", "compute_ms", "communication_ms", "step_ms", "share"],
        )
        best, last, half = curve.loc[curve["step_ms"].idxmin()], curve.iloc[-1], half_at(curve)
        said = [
            f"alpha {alpha:.3g} us a step, {bandwidth:.3g} GB/s, {rate:,.0f} Gflop/s and {overhead:,.0f} us a rank, "
            f"{algorithm} [model]",
            f"shortest on {best['world_size']:,.0f} ranks: {best['step_ms']:.3g} ms",
            f"on {last['world_size']:,.0f} ranks: {last['step_ms']:.3g} ms, {last['share']:.0%} of it communication",
            f"communication is half of a step from {half:,} ranks on"
            if half
            else "communication is never half of a step",
        ]
        return _explored(curve, said, self.label), " | ".join(said)

    def _build(self, widgets: Any) -> Any:
        words = {
            "alpha": ("alpha, us a step", 0.1, 10000.0),
            "bandwidth": ("bandwidth, GB/s", 0.05, 900.0),
            "rate": ("rate, Gflop/s", 1.0, 1e6),
            "overhead": ("fixed work, us", 0.1, 1e5),
        }
        made = log_sliders(widgets, words, self.first)
        made["algorithm"] = widgets.Dropdown(
            options=list(ALGORITHMS), value=self.first["algorithm"], description="all_reduce",
            style={"description_width": "150px"},
        )  # fmt: skip
        return self.picture_with_controls(widgets, made, self.draw)


@styled
def _explored(curve: pd.DataFrame, said: list[str], label: str) -> Figure:
    sheet = Sheet()
    sheet.title(f"{said[1]}, {said[3]}", said[0])
    sheet.say(said[2])
    wide = (sheet.width - 0.8 - 0.3 - 0.85) / 2
    top = sheet.top
    ax = sheet.axes(0.8, wide, HIGH, top=top)
    ax.set(xscale="log", yscale="log", xlabel="ranks", ylabel="a step, ms (model)")
    curve_of(ax, curve)
    rank_axis(ax, curve["world_size"].to_numpy(dtype=float))
    right = sheet.axes(0.8 + wide + 0.85, wide, HIGH, top=top)
    right.set(xscale="log", ylim=(-0.02, 1.04), xlabel="ranks", ylabel="communication's share (model)")
    right.yaxis.set_major_formatter(PercentFormatter(1))
    right.plot(curve["world_size"], curve["share"], color=TALK, linewidth=2)
    right.axhline(0.5, color=style.QUIET, linewidth=1, linestyle=":")
    rank_axis(right, curve["world_size"].to_numpy(dtype=float))
    sheet.top = top + HIGH + 0.5
    sheet.legend(
        [("step", key(TOTAL, "-")), ("work", key(COMPUTE, "--")), ("communication", key(TALK, ":"))], left=0.8
    )
    return sheet.finish(label)
