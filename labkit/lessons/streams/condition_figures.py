"""The overlap condition as a picture and as a calculator: what fits behind what, for rates that the reader states."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.lessons.shared.sliders import log_sliders
from labkit.lessons.streams.condition import condition
from labkit.views import style
from labkit.views.style import Figure, Sheet, styled
from labkit.views.widget import InteractiveFigure

__all__ = ["Calculator", "calculator", "condition_figure"]

LABEL = "calculated"


def calculator(
    *,
    mib: float = 64.0,
    gbytes_per_s: float = 25.0,
    gflop: float = 2000.0,
    tflops: float = 400.0,
    ranks: int = 2,
) -> Calculator:
    """Size, bandwidth and work in, what can be hidden out; the static twin shows the values given here.

    Raises ValueError for a value that is no number above 0.

    >>> print(calculator(mib=64, gbytes_per_s=25, gflop=2000, tflops=400).text)
    all-reduce 2.7 ms, compute 5 ms: all of it can be hidden, and at best the step takes 5 ms instead of 7.7 ms
    """
    given = {"mib": mib, "gbytes_per_s": gbytes_per_s, "gflop": gflop, "tflops": tflops}
    return Calculator({**given, "latency_us": 10.0}, ranks)


class Calculator(InteractiveFigure):
    """What `calculator` returns: `figure` and `text` for the first values, `widget` to change them."""

    def __init__(self, given: dict[str, float], ranks: int) -> None:
        self.given, self.ranks = given, ranks
        super().__init__(*self.draw(ranks=ranks, **given))

    def draw(self, ranks: int, **given: float) -> tuple[Figure, str]:
        """The figure for these values and the line that says the same. Raises ValueError as `condition` does."""
        return condition_figure(ranks=ranks, **given), _said(_at(ranks=ranks, **given))

    def _build(self, widgets: Any) -> Any:
        words = {
            "mib": ("message, MiB", 0.01, 4096.0),
            "gbytes_per_s": ("bandwidth, GB/s", 0.05, 900.0),
            "gflop": ("work, Gflop", 0.01, 1e5),
            "tflops": ("rate, Tflop/s", 0.01, 2000.0),
            "latency_us": ("latency a step, us", 0.1, 10000.0),
        }
        made = log_sliders(widgets, words, self.given)
        made["ranks"] = widgets.Dropdown(
            options=sorted({2, 4, 8, 16, 64, 512, self.ranks}), value=self.ranks, description="ranks"
        )
        return self.picture_with_controls(widgets, made, self.draw)


@styled
def condition_figure(*, mib: float, ranks: int, **rates: Any) -> Figure:
    """Draw how much of an all-reduce can be hidden behind the given work, over its size; the given size is marked.

    Args:
        mib: the size that is marked.
        ranks: how many ranks reduce.
        rates: the other arguments of `calculator`.
    """
    rates["ranks"] = ranks
    here = _at(mib=mib, **rates)
    sizes = mib * np.logspace(-3, 3, 121)
    found = [_at(mib=float(m), **rates) for m in sizes]
    sheet = Sheet()
    sheet.title(
        _said(here), f"{ranks} ranks, ring all-reduce: 2 (n - 1) / n of the bytes, in 2 (n - 1) steps"
    )
    ax = sheet.axes(0.85, sheet.width - 1.15, 2.3)
    ax.plot(
        sizes, [one.communication * 1e3 for one in found], color=style.KINDS["collective"][0], linewidth=2
    )
    ax.axhline(here.compute * 1e3, color=style.KINDS["compute"][0], linewidth=2, linestyle="--")
    ax.axvline(mib, color=style.INK, linewidth=0.9)
    ax.plot([mib], [here.communication * 1e3], "o", color=style.INK)
    ax.set(xscale="log", yscale="log", xlabel="message, MiB", ylabel="time, ms (calculated)")
    ax.grid(color=style.FAINT, linewidth=0.7)
    where = {"xycoords": ("axes fraction", "data"), "fontsize": style.SMALL, "va": "bottom"}
    ax.annotate(
        "compute: below this line everything can be hidden", (0.01, here.compute * 1e3 * 1.05), **where
    )
    last = found[-1].communication * 1e3
    ax.annotate(
        "all-reduce", (sizes[-1], last), xytext=(-6, -12), textcoords="offset points", ha="right", va="top",
        fontsize=style.SMALL,
    )  # fmt: skip
    ax.annotate(
        f"{mib:g} MiB", (mib, 0.02), xycoords=("data", "axes fraction"), xytext=(4, 0), textcoords="offset points",
        fontsize=style.SMALL,
    )  # fmt: skip
    sheet.top += 0.5
    return sheet.finish(LABEL)


def _at(
    *, mib: float, gbytes_per_s: float, gflop: float, tflops: float, latency_us: float, ranks: int
) -> Any:
    return condition(
        mib * 2**20, gbytes_per_s * 1e9, gflop * 1e9, tflops * 1e12, ranks=ranks, latency=latency_us * 1e-6
    )


def _said(found: Any) -> str:
    share = "all of it" if found.hidden == 1 else f"{found.hidden:.0%} of it"
    longer, both = max(found.communication, found.compute), found.communication + found.compute
    return (
        f"all-reduce {found.communication * 1e3:.2g} ms, compute {found.compute * 1e3:.2g} ms: {share} can be hidden, "
        f"and at best the step takes {longer * 1e3:.2g} ms instead of {both * 1e3:.2g} ms"
    )
