"""The figure of lesson 10b: the host's time for a call, by form, mode and number of layers."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.timing import Times
from labkit.views.style import Figure, label_figure, styled

__all__ = ["calls"]

SHADES = ("#9ecae1", "#0072B2", "#08306b")


@styled
def calls(times: Mapping[int, Times]) -> Figure:
    """Draw the median µs of the host for a forward, one row a form, one bar a number of layers, p10 to p90 as a line.

    Args:
        times: by number of layers; variants named `forward: ...`.
    """
    names = [name for name in next(iter(times.values())).variants if name.startswith("forward: ")]
    fig = Figure(figsize=(9, 1.2 + 0.55 * len(names)), layout="constrained")
    ax = fig.subplots()
    height, said = 0.8 / len(times), []
    for k, (depth, one) in enumerate(times.items()):
        us, low, high = (one.quantile(q).reindex(names) * 1e6 for q in (0.5, 0.1, 0.9))
        at = [y + (k - (len(times) - 1) / 2) * height for y in range(len(names))]
        label = f"{depth} MLP{'s' if depth > 1 else ''}"
        ax.barh(at, us, height=0.9 * height, color=SHADES[k % len(SHADES)], label=label)
        ax.hlines(at, low, high, color="#222222", linewidth=1)
        for y, value, end in zip(at, us, high, strict=True):
            ax.annotate(f"{value:.0f}", (end, y), (5, 0), textcoords="offset points", va="center", fontsize=8)
        said += [f"{name}, {label}: {value:.0f} µs" for name, value in us.items()]
    ax.set_yticks(range(len(names)), [name.removeprefix("forward: ") for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.margins(x=0.1)
    ax.set_xlabel("µs of the host's processor for a forward (median; line: p10 to p90)")
    ax.legend(frameon=False, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    fig.get_layout_engine().set(rect=(0, 0.08, 1, 0.92))
    title = "What a forward costs the host, by form"
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold")
    evidence = next(iter(times.values())).evidence
    label_figure(fig, evidence)
    fig.summary = f"{title}. {'; '.join(said)}. [{evidence}]"
    return fig
