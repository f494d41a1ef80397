"""The annotated source as HTML: a table that reads without its style, folds with `<details>`, and needs no script.

JupyterLab drops the style sheet of a notebook that is not trusted, as after every clone, and keeps classes and the
properties of `style` that name a plain colour. So the blocks have their colours twice.
"""

from __future__ import annotations

import functools
import html
import io
import keyword
import re
import tokenize
import zlib
from collections.abc import Sequence
from importlib.resources import files

from oddrank.source.listing import MOST_LANES, Cell, Listing, Note, Row, Section, number
from oddrank.source.text import SIGNS, decorates, sentence

__all__ = ["fragment", "page"]

MOST_OPEN = 8  # functions; with more, those without anything to say are folded
_HUES = ("#0068a8", "#127f69", "#9b3f93", "#5f6b76")  # as in style.css
_INK = {
    "collective": "#0a7ac4",
    "recompile": "#a87b00",
    "inlined": "#808890",
    "eager": "#808890",
    "split": "#808890",
    "shape": "#808890",
}
_APART = ' <span class="unseen">·</span> '  # between entries, where there is no style sheet
_CUT = "#d65a00"  # reads on white and on black


def page(listing: Listing, title: str = "") -> str:
    """A whole page.

    Args:
        listing: What to draw.
        title: Its heading; the names of the files where it is ''.
    """
    body = "body{margin:0;padding:20px;background:#fff}@media(prefers-color-scheme:dark){body{background:#0d1117}}"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{_escape(title) or 'annotated source'}</title><style>{body}</style>{fragment(listing, title)}</html>"
    )


def fragment(listing: Listing, title: str = "") -> str:
    """The same for the inside of a page, or the output of a notebook's cell.

    Args:
        listing, title: As for `page`.
    """
    mine = [one for one in listing.sections if not one.library]
    theirs = [one for one in listing.sections if one.library]
    if not mine:
        mine, theirs = theirs, []
    # a page may have several of these
    name = format(zlib.crc32("".join(f"{s.file}{s.name}{s.first}" for s in listing.sections).encode()), "x")
    ids = {id(one): f"od{name}-{i}" for i, one in enumerate(listing.sections)}
    folded = [one for one in mine if one.whole and not one.beside] if len(mine) > MOST_OPEN else []
    shown = [one for one in mine if one not in folded]
    beside = [one for one in shown if one.whole and not any(one.graphs)] if len(shown) > MOST_OPEN else []
    shown = [one for one in shown if one not in beside]
    pen = _Pen(listing, ids)
    parts = [f'<div class="oddrank"><style>{_style()}</style>', pen.head(mine, title)]
    if not mine:
        parts.append("<p>Nothing was compiled.</p>")
    if len(mine) > 4:
        parts.append(pen.index(shown or folded))
    parts += [pen.section(one) for one in shown]
    parts.append(pen.fold(beside, "that ran in eager"))
    parts.append(pen.fold(folded, "that compiled whole"))
    parts.append(pen.fold(theirs, "of libraries"))
    return "".join(parts) + "</div>"


@functools.cache
def _style() -> str:
    text = (files("oddrank.source") / "style.css").read_text(encoding="utf-8")
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", text, flags=re.S)).strip()


def _escape(text: object) -> str:
    return html.escape(str(text), quote=True)


def _words(text: str) -> str:
    """Text in which `this` is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _escape(text))


def _plural(values: Sequence[int], word: str, kind: str = "") -> str:
    if not any(values):
        return ""
    said = _several(values)
    return f'<span class="{kind}"><b>{said}</b> {word}{"" if said == "1" else "s"}</span> '


def _several(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _hue(block: str) -> int:
    return (ord(block[-1]) - 65) % 4 if block.isalpha() else 3


class _Pen:
    def __init__(self, listing: Listing, ids: dict[int, str]) -> None:
        self.listing, self.ids = listing, ids
        self.alone = len(listing.ranks) == 1 and not listing.against

    # --- around the functions ---

    def head(self, shown: Sequence[Section], title: str) -> str:
        names = list(dict.fromkeys(one.file for one in shown))
        more = f" and {len(names) - 3} more files" if len(names) > 3 else ""
        n = len(self.listing.ranks)
        said = [f"{n} rank{'s' * (n != 1)}"]
        said += [f"torch {self.listing.torch.partition('+')[0]}"] if self.listing.torch else []
        said += [] if self.listing.counted else ["no counts: nothing was profiled"]
        cells = [c for one in shown for row in one.rows for c in row.cells]
        notes = {note.kind for one in shown for row in one.rows for note in row.notes}
        keys = {
            '<i class="solid">A</i> operators in graph A': any(c.graphs for c in cells),
            '<i class="pale"></i> in that graph, without an operator of its own': any(
                c.between for c in cells
            ),
            '<i class="hollow">↰A</i> inlined into graph A of its caller': any(c.inlined for c in cells),
            "<i>✂</i> the graph ends": "break" in notes,
            "<i>⊘</i> given up": bool(notes & {"gave-up", "def"}),
            '<i class="eager"></i> runs in eager': any(c.eager or c.also for c in cells),
            "<i>↻</i> compiled again": "recompile" in notes,
            "<i>⇄</i> collective": "collective" in notes,
            "<i>≠</i> " + ("the runs differ" if self.listing.against else "ranks differ"): any(
                s.differs for s in shown
            ),
            "<i>×2</i> runs in a step": any(c.runs is not None for c in cells),
            "<i>→</i> what the line makes": "shape" in notes,
        }
        told = "".join(f'<p class="told">{_escape(note)}</p>' for note in self.listing.notes)
        title = title or ", ".join(names[:3]) + more
        return (
            f"<header><p class='title'><b>{_escape(title)}</b> <small>{_escape(' · '.join(said))}</small></p>"
            f'<div class="key">{_APART.join(f"<span>{key}</span>" for key, there in keys.items() if there)}</div>'
            f"</header>{told}"
        )

    def fold(self, sections: Sequence[Section], what: str) -> str:
        if not sections:
            return ""
        n = len(sections)
        inside = "".join(self.section(one) for one in sections)
        return (
            f'<details class="fold"><summary>{n} function{"s" * (n > 1)} {what}</summary>{inside}</details>'
        )

    def index(self, sections: Sequence[Section]) -> str:
        rows = "".join(
            f'<tr><td><a href="#{self.ids[id(s)]}"><code>{_escape(s.name)}</code></a></td>'
            f'<td class="wide">{self.map(s)}</td>{_total(s.graphs)}{_total(s.breaks, "cut")}'
            f"{_total(s.recompiles)}{_total(s.collectives)}"
            f"<td>{f'{s.seconds:.1f}' if s.seconds >= 0.05 else ''}</td><td>{'≠' if s.differs else ''}</td></tr>"
            for s in sections
        )
        heads = ("graphs", "breaks", "recompiles", "collectives", "seconds", "" if self.alone else "≠")
        return (
            '<table class="index"><thead><tr><th>function</th><th class="wide">its lines</th>'
            f"{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead><tbody>{rows}</tbody></table>"
        )

    @staticmethod
    def map(section: Section) -> str:
        """A function as a strip of its lines, for its first three lanes."""
        made, n = [], max(len(section.rows), 1)
        for k in range(min(len(section.lanes), 3)):
            stops = []
            for i, row in enumerate(section.rows):
                c = row.cells[k]
                hue = _CUT if c.ends or c.error else _HUES[_hue(c.block)] if c.block else "transparent"
                hue = "#c8cdd2" if c.eager and not c.ends else hue
                hue = "transparent" if c.several else hue
                stops.append(f"{hue} {100 * i / n:.1f}%,{hue} {100 * (i + 1) / n:.1f}%")
            made.append(f'<i style="background:linear-gradient(90deg,{",".join(stops)})"></i>')
        return f'<div class="map">{"".join(made)}</div>'

    # --- one function ---

    def section(self, one: Section) -> str:
        *around, name = one.name.split(".")
        chips = (
            _plural(one.graphs, "graph")
            + _plural(one.breaks, "break", "cut")
            + _plural(one.recompiles, "recompile")
            + _plural(one.collectives, "collective")
            + (f"<span>{one.seconds:.1f} s compiling</span> " if one.seconds >= 0.05 else "")
            + '<span class="cut">cannot compile</span> ' * one.error
            + f'<span class="cut">eager{f": {one.eager_on}" if one.eager_on else ""}</span> ' * one.eager
            + f"<span>in eager{', too' if any(one.graphs) else ''}</span> " * (one.beside and not one.eager)
            + f'<span class="differ">≠ {"runs" if self.listing.against else "ranks"} differ</span>'
            * one.differs
        )
        runs = any(c.runs is not None for row in one.rows for c in row.cells)
        least = (50 if runs else 34) + 16 * any(c.cut == "middle" for row in one.rows for c in row.cells)
        least += 12 * any(c.inlined for row in one.rows for c in row.cells)
        wide = [max(least, 7 * len(lane.head) + 10) for lane in one.lanes]
        told = [f"{lane.head} is {lane.said}" for lane in one.lanes if lane.said and len(lane.said) < 90]
        told += [f"more than {MOST_LANES} kinds; not drawn: ranks {one.left_out}"] if one.left_out else []
        base = one.indent
        code = min(84, max([30, *(len(r.text) - base + 3 for r in one.rows if r.notes)]))
        columns = "".join(
            f'<col style="width:{w}px">'
            for w in (52 if any(r.differs for r in one.rows) or not self.alone else 40, *wide)
        )
        heads = "".join(f"<th>{_escape(lane.head)}</th>" for lane in one.lanes)
        made = [
            f'<section class="fn" id="{self.ids[id(one)]}"><p class="name"><code><span class="of">'
            f"{_escape(''.join(part + '.' for part in around))}</span>{_escape(name)}</code> "
            f'<span class="at">{_escape(one.file)}:{one.first}{_escape(decorates(one))}</span> '
            f'<span class="chips">{chips}</span></p>'
            f'<table class="src" style="--w:{code}"><colgroup>{columns}<col></colgroup><thead><tr>'
            f'<th class="n">{"" if self.alone else "rank"}</th>{heads}<th class="c">{_escape(" · ".join(told))}</th>'
            "</tr></thead><tbody>"
        ]
        painted = _painted([row.text[base:].rstrip() for row in one.rows])
        after = 0  # the row that a gap begins with
        for n, row in one.folded():
            if row is None:
                lanes = "".join(_lane(c) for c in one.rows[after].cells)
                made.append(f'<tr class="gap"><td class="n">⋮</td>{lanes}<td class="c">{n} lines</td></tr>')
            else:
                made.append(self.row(row, painted[n], base))
                after = n + 1
        return "".join(made) + "</tbody></table></section>"

    def row(self, row: Row, painted: str, base: int) -> str:
        broken = any(note.kind in ("break", "gave-up", "error", "unfinished") for note in row.notes)
        indent = max(row.indent - base, 0)
        notes = f'<div class="notes">{"".join(_note(note) for note in row.notes)}</div>' if row.notes else ""
        body = f"<pre>{painted or ' '}</pre>{notes}"
        body = f'<div class="r{"" if notes else " bare"}" style="--in:{indent}">{body}</div>'
        more = _more(row)
        if more:
            body = f'<details><summary>{body}</summary><div class="more">{more}</div></details>'
        kind = " ".join(filter(None, ("broken" * broken, {"-": "gone", "+": "new"}.get(row.change, ""))))
        sign = row.change or ("<u>≠</u>" if row.differs else "")
        tint = ' style="background-color:rgba(255,120,30,0.12)"' if broken else ""
        return (
            f'<tr{f" class={_quoted(kind)}" if kind else ""}{tint}><td class="n">{sign}{row.number or ""}</td>'
            f"{''.join(_lane(c) for c in row.cells)}"
            f'<td class="c{"" if row.bright else " dim"}" style="text-align:left">{body}</td></tr>'
        )


def _quoted(text: str) -> str:
    return f'"{text}"'


def _total(values: Sequence[int], kind: str = "") -> str:
    said = _several(values) if any(values) else ""
    return f'<td class="{kind}">{said if kind else f"<b>{said}</b>"}</td>'


def _lane(c: Cell) -> str:
    kinds, inside, style = ["l"], "", ""
    if c.block:
        hue = _hue(c.block)
        red, green, blue = (int(_HUES[hue][i : i + 2], 16) for i in (1, 3, 5))
        pale = c.between or c.inlined
        style = (
            f"background-color:rgba({red},{green},{blue},0.3)"
            if pale
            else f"background-color:{_HUES[hue]};color:#fff"
        )
        kinds += [
            f"h{hue}",
            c.edge,
            "pale" * c.between,
            "hollow" * c.inlined,
            "several" * c.several,
            "split" * c.split,
            f"ends {c.cut}" * c.ends,
            "also" * c.also,
        ]
        letters = "".join(c.graphs) if len("".join(c.graphs)) <= 4 else f"{len(c.graphs)}"
        if c.cut == "middle":
            kinds.append(f"u{_hue(c.before)}")
            inside = f"<b>{_escape(c.before)}</b><i>✂</i><b>{_escape(c.block)}</b>"
        elif c.edge in ("first", "only") or len(c.graphs) > 1:
            inside = f"<b>{'↰' * c.inlined}{_escape(letters if len(c.graphs) > 1 else c.block)}</b>"
        else:
            inside = f'<span class="unseen">{_escape("·" if c.between else c.block)}</span>'
        inside += f"<small>×{number(c.runs)}</small>" if c.runs is not None else ""
        inside += (
            f'<small title="in compile {_escape(c.only)} only">{_escape(c.only)}</small>' if c.only else ""
        )
        inside += '<span class="unseen">✂</span>' * (c.ends and c.cut != "middle")
        inside += '<span class="unseen">eager</span>' * c.also
    elif c.ends or c.error:
        kinds.append("cut")
        style = f"color:{_CUT}"
        inside = f"<span>{'✗' if c.error else '✂'}</span>"
    elif c.eager:
        kinds.append("eager")
        inside = '<span class="unseen">eager</span>'
    return f'<td class="{" ".join(filter(None, kinds))}"{f" style={_quoted(style)}" if style else ""}>{inside}</td>'


def _note(note: Note) -> str:
    who = f"<em>{_escape(note.who)}</em> " if note.who else ""
    ink = _INK.get(note.kind, _CUT)
    said = f"<i>{SIGNS[note.kind]}</i> {who}{sentence(note, _words)}"
    return f'<div class="note {note.kind}" style="color:{ink}">{said}</div>'


def _more(row: Row) -> str:
    """What a line opens to."""
    made = []
    for note in row.notes:
        if note.explanation:
            made.append(f"<p>{_words(note.explanation)}</p>")
        made += [f'<p class="hint">→ {_words(hint)}</p>' for hint in note.hints]
        if note.link:
            there = f'href="{_escape(note.link)}" rel="noopener" target="_blank"'
            made.append(f'<p class="hint">→ <a {there}>PyTorch on this graph break</a></p>')
    for who, stages in row.operators.items():
        columns = "".join(
            f"<div><p class='stage'>{_escape(f'{who} · ' if who else '')}{stage}</p><ul>"
            + "".join(
                f"<li><code>{_escape(op.name)}</code>{f' <span>×{op.times}</span>' if op.times > 1 else ''}"
                f"{f' <span>{_escape(op.type)}</span>' if op.type else ''}</li>"
                for op in ops
            )
            + "</ul></div>"
            for stage, ops in stages.items()
        )
        made.append(f'<div class="stages">{columns}</div>')
    return "".join(made)


def _painted(lines: Sequence[str]) -> list[str]:
    """Python's code as HTML: keywords bold, strings and comments in their colours."""
    spots: dict[int, list[tuple[int, int, str]]] = {}
    try:
        for t in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            tag = {tokenize.STRING: "span", tokenize.COMMENT: "i"}.get(t.type, "")
            if t.type == tokenize.NAME and keyword.iskeyword(t.string):
                tag = "b"
            if tag and t.start[0] == t.end[0]:
                spots.setdefault(t.start[0] - 1, []).append((t.start[1], t.end[1], tag))
    except (tokenize.TokenError, SyntaxError):
        pass  # a part of a function: what was read until here keeps its colours
    made = []
    for n, line in enumerate(lines):
        at, parts = 0, []
        for begin, end, tag in spots.get(n, ()):
            parts += [_escape(line[at:begin]), f"<{tag}>{_escape(line[begin:end])}</{tag}>"]
            at = end
        made.append("".join(parts) + _escape(line[at:]))
    return made
