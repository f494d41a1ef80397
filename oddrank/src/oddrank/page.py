"""An HTML page that holds everything it shows, and loads nothing: its look, and tables. All text is escaped."""

from __future__ import annotations

import html as escaping
from collections.abc import Container, Sequence
from typing import Any

__all__ = ["SOURCE_STYLE", "document", "escape", "table"]

STYLE = """
:root{color-scheme:light dark;--ink:#222;--paper:#fff;--quiet:#666;--line:#ddd;--shade:#f7f7f7;--link:#0072B2}
@media(prefers-color-scheme:dark){
:root{--ink:#ddd;--paper:#181818;--quiet:#a5a5a5;--line:#444;--shade:#262626;--link:#7cc0ee}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1120px;margin:24px auto;
padding:0 16px}h1{font-size:24px;margin:0}h2{font-size:18px;margin:34px 0 6px;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;font-size:13px;margin:6px 0}.quiet{color:var(--quiet)}a{color:var(--link)}
td,th{text-align:left;padding:3px 12px 3px 0;vertical-align:top}tr+tr td{border-top:1px solid var(--line)}
td:not(:first-child),summary,li,p{overflow-wrap:anywhere}body>table{display:block;overflow-x:auto}
.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap}
th{border-bottom:1px solid var(--quiet)}.diff{overflow-x:auto}
.bad,.good{border-left:4px solid #D55E00;padding-left:10px}.good{border-color:#009E73}
img{max-width:100%;background:#fff;border-radius:4px}pre{white-space:pre-wrap;background:var(--shade);padding:8px}
ol.first li{margin-bottom:10px}code{font-size:13px}summary{cursor:pointer}.diff{color:#222;background:#fff;padding:8px}
"""
# the annotated source has a look of its own; on these pages it stands on their paper
SOURCE_STYLE = (
    "<style>body .oddrank{margin:8px 0}@media(prefers-color-scheme:dark){body .oddrank{--paper:#181818;--soft:#262626}}"
    "</style>"
)
MOST = 60  # rows of a table; the data have all


def document(title: str, parts: list[str]) -> str:
    """Return a whole HTML document of parts."""
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><style>{STYLE}</style>"
    head += f"<title>{escape(title)}</title>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>"


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", numbers: Container[int] = ()
) -> str:
    """Return an HTML table of the first rows.

    Args:
        columns: Their names.
        rows: A text for each column.
        caption: Above the table.
        numbers: Which columns hold numbers, from 0.

    >>> table(["rank"], [])
    '<p>None.</p>'
    """
    if not rows:
        return "<p>None.</p>"
    marks = [" class='n'" if at in numbers else "" for at in range(len(columns))]
    head = "".join(f"<th{mark}>{escape(name)}</th>" for name, mark in zip(columns, marks, strict=True))
    body = ""
    for row in rows[:MOST]:
        body += f"<tr>{''.join(f'<td{m}>{escape(v)}</td>' for m, v in zip(marks, row, strict=True))}</tr>"
    more = len(rows) - MOST
    left = f"<p class='quiet'>… and {more} rows more in the data.</p>" if more > 0 else ""
    said = f"<p class='quiet'>{escape(caption)}</p>" if caption else ""
    return f"{said}<table><tr>{head}</tr>{body}</table>{left}"


def escape(text: Any) -> str:
    """Return a text that HTML shows as it is.

    >>> escape("<b>")
    '&lt;b&gt;'
    """
    return escaping.escape(str(text))
