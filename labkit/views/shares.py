"""Where a forward's time goes: compute, collectives, lookups, region entry and Python, for each variant and rank."""

from __future__ import annotations

import pandas as pd

from labkit.views import style
from labkit.views.colour import ink_on
from labkit.views.frames import OVERHEAD, need
from labkit.views.rows import LEFT, beside, empty, heading, panels
from labkit.views.style import Figure, Sheet, styled, variant_name

__all__ = ["breakdown"]

FOOTNOTE = (
    "From profiled forwards, which take longer than timed ones: read the shares here, and times from a timing."
    " Kinds stand in the order of the key."
)
BAR, BETWEEN = 0.24, 0.13  # inches a rank's bar takes, and between variants
SHORT = {
    "dispatch": "subclass",
    "lookup": "lookup",
    "entry": "entry",
    "python": "Python",
    "transfer": "transfer",
}  # to be written in a bar


@styled
def breakdown(frame: pd.DataFrame, title: str | None = None, label: str = "") -> Figure:
    """Draw where a forward's time goes, as stacked shares: a bar a rank, with its whole time beside it.

    `frame` has variant, rank, kind and us; several forwards are averaged. With a column `evidence` each kind of
    evidence gets a panel.

    Raises ValueError for a missing column or a kind that has no colour.

    >>> rows = [("B", 0, "compute", 300.0), ("B", 0, "entry", 700.0)]
    >>> figure = breakdown(pd.DataFrame(rows, columns=["variant", "rank", "kind", "us"]), label="host only")
    >>> figure.texts[0].get_text()
    'Time that is neither compute nor communication: B 70%'
    """
    frame = need(frame, ["variant", "rank", "kind", "us"], "breakdown")
    unknown = [kind for kind in pd.unique(frame["kind"]) if kind not in style.KINDS]
    if unknown:
        raise ValueError(f"table 'breakdown' has kind {unknown[0]!r}: known are {', '.join(style.KINDS)}")
    sheet = Sheet()
    if frame.empty:
        return empty(sheet, title, "No forward was recorded", label)
    by = [column for column in ("evidence", "variant", "rank") if column in frame.columns]
    if "forward" in frame.columns:
        forwards = frame.groupby(by)["forward"].nunique()
        sums = frame.groupby([*by, "kind"], sort=False)["us"].sum()
        frame = (sums / forwards).rename("us").reset_index()
    sheet.title(_overhead(frame) if title is None else title)
    kinds = [kind for kind in style.KINDS if kind in set(frame["kind"])]
    sheet.legend([(style.KINDS[kind][1], style.swatch(kind, shaped=False)) for kind in kinds])
    for name, part in panels(frame):
        heading(sheet, name)
        table = part.pivot_table(
            index=["variant", "rank"], columns="kind", values="us", aggfunc="sum", fill_value=0.0, sort=False
        )
        table = table.reindex(columns=kinds, fill_value=0.0)
        _stacks(sheet, table)
        sheet.say(f"{name}: {_listed(table)}" if name else _listed(table))
    return sheet.finish(label, FOOTNOTE)


def _stacks(sheet: Sheet, table: pd.DataFrame) -> None:
    groups = [
        (str(variant), rows.sort_index()) for variant, rows in table.groupby(level="variant", sort=False)
    ]
    height = sum(BAR * len(rows) + BETWEEN for _, rows in groups)
    left = LEFT + 0.55
    width = sheet.width - left - 1.1
    ax = sheet.axes(left, width, height)
    ax.set(ylim=(height, 0), xlim=(0, 100))
    top, ticks = 0.0, []
    for variant, rows in groups:
        middle = top + BAR * len(rows) / 2
        where = {
            "xycoords": ax.get_yaxis_transform(),
            "textcoords": "offset points",
            "annotation_clip": False,
        }
        text = style.cut(variant_name(variant), LEFT - 0.2)
        ax.annotate(text, (0, middle), (-55, 0), va="center", ha="right", gid="variant", **where)
        for (_, rank), row in rows.iterrows():
            ticks.append((top + BAR / 2, f"rank {rank}"))
            whole, start = row.sum(), 0.0
            for kind, us in row.items():
                share = 100 * us / whole if whole else 0.0
                bar = ax.barh(
                    top + BAR / 2, share, BAR - 0.04, start, color=style.KINDS[str(kind)][0], linewidth=0
                )
                bar.patches[0].set_gid(f"{kind} {variant} rank {rank}")
                words = SHORT.get(str(kind), style.KINDS[str(kind)][1])
                room = share / 100 * width - 0.06
                fits = (
                    t for t in (f"{words} {share:.0f}%", f"{share:.0f}%") if style.text_width(t, 7.5) < room
                )
                if text := next(fits, ""):
                    ink, middle = ink_on(style.KINDS[str(kind)][0]), start + share / 2
                    ax.text(middle, top + BAR / 2, text, ha="center", va="center", fontsize=7.5, color=ink)
                start += share
            beside(ax, top + BAR / 2, f"of {whole / 1e3:.3g} ms", right=6)
            top += BAR
        top += BETWEEN
    ax.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_formatter("{x:g}%")
    ax.set_xlabel("share of a rank's forward", labelpad=1)
    sheet.top += 0.44


def _listed(table: pd.DataFrame) -> str:
    """Every variant's shares in words, its ranks taken together."""
    sums = table.groupby(level="variant", sort=False).sum()
    shares = sums.div(sums.sum(axis=1), axis=0).fillna(0.0)
    said = []
    for variant, row in shares.iterrows():
        parts = [f"{style.KINDS[str(kind)][1]} {share:.0%}" for kind, share in row.items() if share >= 0.005]
        said.append(f"{variant}: {', '.join(parts) or 'no time'}")
    return "; ".join(said)


def _overhead(frame: pd.DataFrame) -> str:
    found = panels(frame)
    name, part = next(((name, part) for name, part in found if name != "host only"), found[0])
    total = part.groupby("variant", sort=False)["us"].sum()
    lost = part[part["kind"].isin(OVERHEAD)].groupby("variant")["us"].sum().reindex(total.index).fillna(0.0)
    shares = ", ".join(f"{style.short_name(str(v))} {share:.0%}" for v, share in (lost / total).items())
    where = f" ({name})" if len(found) > 1 else ""
    return f"Time that is neither compute nor communication: {shares}{where}"
