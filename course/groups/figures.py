"""What an all-reduce costs, drawn: measured times of two algorithms by the bytes summed, and the model's lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes

from labkit.views import style
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import need

__all__ = ["costs"]

LOOKS = (("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", ":"), ("#000000", "D", "-."))
HIGH, LEFT = 2.9, 0.9  # inches


@styled
def costs(
    found: pd.DataFrame,
    model: Mapping[str, Callable[[float], float]],
    sizes: Sequence[float],
    crossing: float,
    label: str,
) -> Figure:
    """Draw measured times with their spread, and the model's line for each algorithm that it predicts.

    Args:
        found: a row for each algorithm and size, with the columns algorithm, bytes, ms, p10 and p90.
        model: milliseconds by bytes, for some of the algorithms.
        sizes: bytes at which the lines are drawn.
        crossing: bytes at which two of the lines meet.
        label: where the times were taken.

    Raises:
        ValueError: a column is missing.

    >>> rows = pd.DataFrame({"algorithm": ["ring"], "bytes": [2**14], "ms": [2.0], "p10": [1.5], "p90": [4.0]})
    >>> figure = costs(rows, {"ring": lambda n: 1 + n / 2**14}, [2**14, 2**24], 2**20, "gloo · cpu")
    >>> figure.summary.partition(".")[0], "ring, 16 KiB: 2 ms (1.5-4), model 2 ms." in figure.summary
    ("The model's lines cross at 1 MiB", True)
    """
    need(found, ["algorithm", "bytes", "ms", "p10", "p90"], "time")
    sheet = Sheet()
    sheet.title(
        f"The model's lines cross at {_size(crossing)}",
        "Points: measured, median and p10 to p90, moved sideways a little. Lines: predicted from messages and passes.",
    )
    ax = sheet.axes(LEFT, sheet.width - LEFT - 0.3, HIGH, top=sheet.top)
    sheet.top += HIGH + 0.5
    ax.set(xscale="log", yscale="log", xlabel="bytes that each rank holds", ylabel="one all-reduce, ms")
    keys: list[tuple[str, Callable[[Axes, float, float], object]]] = []
    for (name, rows), (colour, marker, line) in zip(
        found.groupby("algorithm", sort=False), LOOKS, strict=False
    ):
        bars = [rows["ms"] - rows["p10"], rows["p90"] - rows["ms"]]
        beside = rows["bytes"] * 1.12 ** (len(keys) - 1)  # so that the bars do not hide each other
        ax.errorbar(beside, rows["ms"], bars, fmt=marker, color=colour, markersize=6, capsize=3)
        predict = model.get(str(name))
        if predict:
            ax.plot(sizes, [predict(size) for size in sizes], line, color=colour, linewidth=1.6)
        for row in rows.itertuples():
            said = f"{name}, {_size(row.bytes)}: {row.ms:.3g} ms ({row.p10:.3g}-{row.p90:.3g})"
            sheet.say(said + (f", model {predict(row.bytes):.3g} ms" if predict else ""))
        keys.append((str(name), _key(colour, line if predict else "none", marker)))
    ax.axvline(crossing, color=style.INK, linewidth=0.9, linestyle=(0, (1, 2)))
    ticks = sorted(set(found["bytes"]))
    ax.minorticks_off()
    ax.set_xticks(ticks, [_size(n) for n in ticks])
    ax.grid(color=style.FAINT, linewidth=0.7)
    sheet.legend(keys, left=LEFT)
    return sheet.finish(label)


def _size(count: float) -> str:
    """Bytes in words.

    >>> _size(16384), _size(2**24)
    ('16 KiB', '16 MiB')
    """
    return f"{count / 2**20:.3g} MiB" if count >= 2**20 else f"{count / 2**10:.3g} KiB"


def _key(colour: str, line: str, marker: str) -> Callable[[Axes, float, float], object]:
    return lambda ax, x, y: ax.plot(
        [x - 0.06, x + 0.08, x + 0.22], [y + 0.06] * 3, linestyle=line, color=colour, linewidth=1.6, marker=marker,
        markevery=[1], markersize=5.5,
    )  # fmt: skip
