"""The page of `labkit look`: one HTML file that holds everything it shows, and loads nothing."""

from __future__ import annotations

import base64
import html as escaping
from typing import Any

import pandas as pd

from labkit.looking.found import Looked
from labkit.views import strip, strip_text

__all__ = ["document", "html", "picture", "table"]

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:1120px;margin:24px auto;padding:0 16px}
h1{font-size:24px;margin:0}h2{font-size:18px;margin:34px 0 6px;border-bottom:1px solid #ddd}
table{border-collapse:collapse;font-size:13px;margin:6px 0}
td,th{text-align:left;padding:3px 12px 3px 0;vertical-align:top}
th{border-bottom:1px solid #999}td.n{text-align:right;font-variant-numeric:tabular-nums}
tr+tr td{border-top:1px solid #eee}.quiet{color:#666}.bad{border-left:4px solid #D55E00;padding-left:10px}
.good{border-left:4px solid #009E73;padding-left:10px}img{max-width:100%}
pre{white-space:pre-wrap;background:#f7f7f7;padding:8px}
ol.first li{margin-bottom:10px}code{font-size:13px}
"""
MOST = 60  # rows of a table; the data have all
PHASES = {"dynamo_s": "Dynamo: tracing and guards, s", "backend_s": "backend: AOTAutograd and Inductor, s"}
ELSEWHERE = """
<ul>
<li><b>Executed breaks</b> count each run of a region that ends in a break, so a break in a block that runs 40 times
counts 40 times. <code>torch._dynamo.explain</code>, <code>TORCH_LOGS=graph_breaks</code>, Dynamo's
<code>counters</code> and tlparse count a break once, when it is compiled: compare them with the number of rows.</li>
<li><b>Graphs</b> are those with at least one operation. <code>counters["stats"]["unique_graphs"]</code> and tlparse
also count one without.</li>
<li>A branch on the data of a tensor is a break here, and none in <code>counters["graph_break"]</code>. A frame that
Dynamo gives up runs as plain Python and leaves no trace to count: it stands under <i>frames given up</i>.</li>
<li><b>Time outside</b> runs from the end of the compiled code before a break to the next compiled code on that thread,
or to the end of the step. It holds all that the program does there, also what it would have to do without the break,
so it is an upper bound of what the break costs. It was taken under the profiler, which lengthens small operations.</li>
</ul>
"""


def html(looked: Looked, failure: str = "", step: str = "", tlparse: str = "") -> str:
    """Return the page.

    Args:
        looked: What ranks recorded.
        failure: Why the script failed afterwards, '' if it did not.
        step: The function that was said to be a step, '' for none.
        tlparse: The address of tlparse's report, relative to the page.
    """
    unit, apart, took = looked.unit, looked.apart(), looked.duration_ms()
    how = f"calls of <code>{_e(step)}</code>" if step else {
        "step": "from a compiled call to the end of <code>optimizer.step</code>",
        "forward": "one compiled call each",
    }[unit]  # fmt: skip
    parts = [
        f"<h1>{_e(looked.name)}</h1>",
        f"<p class='quiet'>{looked.steps} {unit}s ({how}) on {len(looked.ranks)} ranks · {_e(looked.record.label)}"
        f"{'' if pd.isna(took) else f' · {took:.1f} ms a {unit} under the profiler'}</p>",
        f"<div class='bad'><b>The script failed after these {unit}s were recorded.</b><pre>{_e(failure)}</pre></div>"
        if failure
        else "",
        f"<p class='bad'><b>Ranks differ:</b> {_e(apart)}</p>"
        if apart
        else "<p class='good'>All ranks ran the same regions, breaks and collectives in the same order.</p>"
        if len(looked.ranks) > 1
        else "",
        table(looked.counts(), f"Regions, breaks and collectives per {unit}; the others in the whole run."),
        *_to_do(looked),
        f"<h2>The strip of one {unit}</h2>",
        picture(strip(looked.record, "typical"), strip_text(looked.record, "typical")),
        *_breaks(looked),
        *_ranks(looked),
        "<h2>Recompiles, in the whole run</h2>",
        table(
            looked.whole["recompiles"][["rank", "name", "reason", "place"]],
            "The guard that failed, and where its value is used.",
        )
        if len(looked.whole["recompiles"])
        else "<p>None.</p>",
        *_first_call(looked),
        f"<h2>Collectives per {unit}</h2>",
        table(
            looked.collectives(),
            "In the order of the first call. Only those right behind a break have a place.",
        ),
        f"<h2>Compiled regions per {unit}</h2>",
        table(looked.regions(), ""),
        "<h2>tlparse</h2>",
        f"<p><a href='{_e(tlparse)}'>What every rank compiled, by tlparse</a></p>"
        if tlparse
        else "<p class='quiet'>Not made: tlparse is not installed, or it could not read the traces.</p>",
        "<h2>What torch's own tools count otherwise</h2>",
        ELSEWHERE,
        "<h2>Provenance</h2>",
        table(pd.DataFrame([(k, str(v)) for k, v in looked.provenance.items()], columns=["", " "]), ""),
        "".join(f"<p class='quiet'>Note: {_e(note)}</p>" for note in looked.notes),
        "<p class='quiet'>This page loads nothing from a network and sends nothing. All tables are in the"
        " <code>rank-N.json</code> beside it.</p>",
    ]
    return document(f"{looked.name}: labkit look", parts)


def document(title: str, parts: list[str]) -> str:
    """Return a whole HTML document of parts."""
    head = f"<meta charset='utf-8'><title>{_e(title)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>"


def picture(figure: Any, text: str) -> str:
    """Return a figure as an image that stands in the page itself, with a text for those who do not see it."""
    data = base64.b64encode(figure.png()).decode()
    return f"<img alt='{_e(text)}' src='data:image/png;base64,{data}'>"


def _to_do(looked: Looked) -> list[str]:
    breaks = looked.breaks.head(3)
    if breaks.empty:
        given_up = looked.counts()["frames given up"].max()
        more = " Frames given up run as plain Python: see the table of breaks." if given_up else ""
        return [
            "<h2>What to do first</h2>",
            f"<p>No graph break was executed in these {looked.unit}s.{more}</p>",
        ]
    items = []
    for row in breaks.itertuples():
        hints = "".join(
            f"<br><span class='quiet'>torch's hint: {_e(hint)}</span>" for hint in row.hints.splitlines()
        )
        items.append(
            f"<li><b>{_e(row.place)}</b>: {_e(row.reason)}<br>"
            f"{looked.cost(row)} outside compiled code around it{hints}</li>"
        )
    return ["<h2>What to do first</h2>", f"<ol class='first'>{''.join(items)}</ol>"]


def _breaks(looked: Looked) -> list[str]:
    costly = looked.breaks
    parts = [f"<h2>Executed breaks per {looked.unit}</h2>"]
    if len(costly):
        shown = costly.drop(columns=["explanation", "hints"]).rename(
            columns={"outside_ms": "ms outside, at most", "share": f"of the {looked.unit}"}
        )
        parts.append(
            table(shown.assign(**{f"of the {looked.unit}": costly["share"].map("{:.0%}".format)}), "")
        )
    else:
        parts.append("<p>None.</p>")
    every = looked.whole["breaks"]
    others = every[~every["place"].add(every["reason"]).isin(costly["place"].add(costly["reason"]))]
    others = others.drop_duplicates(["kind", "reason", "place"])[["kind", "name", "reason", "place"]]
    if len(others):
        said = f"Compiled in the run and not executed in these {looked.unit}s; 'skip' is a frame given up."
        parts.append(table(others, said))
    return parts


def _ranks(looked: Looked) -> list[str]:
    if len(looked.ranks) < 2:
        return []
    parts = ["<h2>What differs between ranks</h2>"]
    for stage, title in (("dynamo", "graph"), ("guards", "guards")):
        differing = looked.differing(stage)
        for name, compared in differing[:3]:
            parts.append(f"<h3>The {title} of {_e(name)}</h3>{compared._repr_html_()}")
        if len(differing) > 3:
            parts.append(f"<p class='quiet'>… and {len(differing) - 3} more with other {title}.</p>")
    return [*parts, "<p>No graph and no guard.</p>"] if len(parts) == 1 else parts


def _first_call(looked: Looked) -> list[str]:
    compiles = looked.whole["compiles"]
    sums = compiles.groupby("rank")[list(PHASES)].sum().reset_index().rename(columns=PHASES)
    sums.insert(1, "compiles", compiles.groupby("rank").size().to_numpy())
    slowest = compiles.sort_values("seconds", ascending=False).head(5)
    slowest = slowest[["rank", "name", "place", "seconds", *PHASES]].rename(columns=PHASES)
    return [
        "<h2>Compiling, by phase</h2>",
        table(sums, "In the whole run. A cache that was warm makes the backend short."),
        table(slowest, "The longest compiles."),
    ]


def table(frame: pd.DataFrame, caption: str = "", most: int = MOST) -> str:
    """Return a DataFrame as an HTML table of at most `most` rows."""
    head = "".join(f"<th>{_e(str(column))}</th>" for column in frame.columns)
    rows = ["".join(_cell(value) for value in row) for row in frame.head(most).itertuples(index=False)]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    left = (
        f"<p class='quiet'>… and {len(frame) - most} rows more in the data.</p>" if len(frame) > most else ""
    )
    said = f"<p class='quiet'>{_e(caption)}</p>" if caption else ""
    return f"{said}<table><tr>{head}</tr>{body}</table>{left}"


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f"<td>{_e(value)}</td>"
    return f"<td class='n'>{value:.4g}</td>"


def _e(text: str) -> str:
    return escaping.escape(str(text))
