"""What keeps a notebook from being fit to commit: each rule gives one line a finding, and the line names the cell.

The outputs are read without a kernel, on code hosts and in the book, by people who may not see a picture. So every
picture has a text, headings nest, no output is an error, a live widget or a path of this machine, and the file is
small enough to open.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit import files

__all__ = [
    "MOST_BYTES",
    "alt_text",
    "code_cells",
    "headings",
    "links",
    "numbers",
    "outputs",
    "prose",
    "size",
    "unrun",
]

ROOT = files.ours("notebooks").parent
MOST_BYTES = 1_500_000
MAP = "lesson-map"  # the tag of the cell that `tools.course` writes
MOST_SAID = 100  # characters of a string that a code cell shows
SHOWS = ("print", "display", "Markdown", "HTML", "Latex")
_TIMES = ("ms", "us", "µs", "ns", "s", "second", "millisecond", "microsecond")
_UNITS = {
    *(
        "region",
        "break",
        "collective",
        "graph",
        "rank",
        "block",
        "copy",
        "call",
        "compile",
        "recompile",
        "guard",
        "node",
    ),
    *(
        "element",
        "byte",
        "operation",
        "operator",
        "kernel",
        "frame",
        "forward",
        "step",
        "round",
        "weight",
        "piece",
    ),
    *("%", "×", "times", "percent", "KB", "MB", "GB", "KiB", "MiB", "GiB"),
}
_LINK = re.compile(r"\]\((?!#|[a-z]+://)([^)#\s]+)")
_NUMBER = re.compile(r"(?<![\w.\-/[(#])(\d[\d,]*(?:\.\d+)?)(\s?)(%|×|[A-Za-zµ]+)?")
_SOURCED = re.compile(r"\b(sources?|Runs?|slides?|posts?|papers?|documents?|issues?|RFC|topic|default)\b")
WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_REPR = re.compile(r"Loading widget|^[A-Za-z]\w*\((?:.*, )?(?:children=\(|description=')", re.MULTILINE)


def code_cells(notebook: Any) -> Iterator[tuple[int, Any]]:
    """The code cells with their place in the notebook, counted from 1."""
    return ((i, cell) for i, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code")


def alt_text(cell: Any, index: int) -> str:
    """The text that stands for the picture in output `index` of `cell`, on one line; empty where it has none.

    Looked for in this order: `alt` in the output's metadata (where IPython and nbconvert keep it), the output's own
    plain text unless that is only an object's repr, and text that is shown directly under the picture.

    >>> import nbformat.v4 as v4
    >>> picture = v4.new_output("display_data", data={"image/png": "", "text/plain": "<Figure size 800x600>"})
    >>> alt_text(v4.new_code_cell(outputs=[picture]), 0)
    ''
    >>> below = v4.new_output("stream", text="rank 0: one region, rank 1: one region")
    >>> alt_text(v4.new_code_cell(outputs=[picture, below]), 0)
    'rank 0: one region, rank 1: one region'
    """
    output = cell.outputs[index]
    said = [output.metadata.get(kind, {}).get("alt", "") for kind in _pictures(output)]
    said.append(output.data.get("text/plain", ""))
    if index + 1 < len(cell.outputs):
        below = cell.outputs[index + 1]
        data = below.get("data", {})
        if below.get("name") == "stdout":
            said.append(below.text)
        elif not _pictures(below):
            said.append(data.get("text/markdown", "") or data.get("text/plain", ""))
    lines = [" ".join(text.split()) for text in said]
    return next((line for line in lines if len(line.split()) > 2 and not re.fullmatch(r"<.*>", line)), "")


def unrun(notebook: Any) -> list[str]:
    """Code cells that were not run when the outputs were saved."""
    found = (i for i, cell in code_cells(notebook) if cell.source.strip() and cell.execution_count is None)
    return [f"cell {i}: it was not run: `make notebooks` executes the notebook" for i in found]


def headings(notebook: Any) -> list[str]:
    """Headings that do not nest: one of the first level, before all others, and no level left out on the way down.

    >>> import nbformat.v4 as v4
    >>> headings(v4.new_notebook(cells=[v4.new_markdown_cell("# Title\\n\\n### Deep")]))
    ["cell 1: heading 'Deep' is of level 3 under one of level 1"]
    """
    found, above = [], 0
    for i, level, text in _headings(notebook):
        if level == 1 and above:
            found.append(f"cell {i}: heading {text!r} is a second title: a notebook has one")
        elif level > above + 1:
            under = f"under one of level {above}" if above else "and no title stands above it"
            found.append(f"cell {i}: heading {text!r} is of level {level} {under}")
        above = level
    return found if above else ["it has no title: the first cell begins with `# `"]


def links(notebook: Any, folder: Path) -> list[str]:
    """Links in Markdown to a file that is not there, or to a page of docs/, which the book does not hold.

    >>> import nbformat.v4 as v4
    >>> links(v4.new_notebook(cells=[v4.new_markdown_cell("[a](../docs/nccl.md)")]), ROOT / "notebooks")
    ["cell 1: a link to '../docs/nccl.md', which the book does not hold: name it as `docs/nccl.md`"]
    """
    found = []
    for i, cell in enumerate(notebook.cells, 1):
        for to in _LINK.findall(cell.source) if cell.cell_type == "markdown" else ():
            if to.startswith("../docs/"):
                found.append(
                    f"cell {i}: a link to {to!r}, which the book does not hold: name it as `{to[3:]}`"
                )
            elif not (folder / to).is_file():
                found.append(f"cell {i}: a link to {to!r}, and there is no such file")
    return found


def outputs(notebook: Any) -> list[str]:
    """Outputs that must not be kept: errors, stderr, paths of this machine, live widgets, pictures without a text."""
    found = []
    for i, cell in code_cells(notebook):
        for index, output in enumerate(cell.outputs):
            if output.output_type == "error":
                found.append(f"cell {i}: ended in {output.ename}: {output.evalue}")
            elif output.get("name") == "stderr":
                found.append(f"cell {i}: wrote to stderr: {output.text.strip().splitlines()[-1][:200]!r}")
            for text in _texts(output):
                found += [f"cell {i}: its output holds this machine's path {p!r}" for p in _paths(text)]
            found += [f"cell {i}: {line}" for line in _unseen(cell, index)]
    return list(dict.fromkeys(found))


def stated(notebook: Any) -> list[str]:
    """Minutes in the first cell that are not true: those to run are not those that executing took, those for the
    exercises are not what the exercises add up to.

    >>> import nbformat.v4 as v4
    >>> head = v4.new_markdown_cell("**Needs.** 40 minutes, 20 of them for the exercises.")
    >>> task = v4.new_markdown_cell("**Exercise** `a.b` · easy · 15 minutes. **Target:** a sum.")
    >>> stated(v4.new_notebook(cells=[head, task]))
    ['its first cell says 20 minutes for the exercises, and they add up to 15']
    """
    first, found = notebook.cells[0].source if notebook.cells else "", []
    says = re.search(r"\b(\d+) of them to run", first)
    seconds = notebook.metadata.get("labkit", {}).get("seconds")
    if says and seconds is not None and not int(says[1]) - 1.25 <= seconds / 60 <= int(says[1]) + 0.25:
        found.append(f"its first cell says {says[1]} minutes to run, and it ran for {seconds} s")
    told = re.search(r"\b(\d+) of them for the exercises", first)
    words = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    tasks = sum(map(int, re.findall(r"\*\*Exercise\*\*.*?(\d+) minutes", words)))
    if told and int(told[1]) != tasks:
        found.append(f"its first cell says {told[1]} minutes for the exercises, and they add up to {tasks}")
    return found


def prose(notebook: Any) -> list[str]:
    """Code cells that assemble prose: what is explained stands in Markdown, and a cell prints a short result.

    >>> import nbformat.v4 as v4
    >>> long = v4.new_code_cell("print('" + 15 * "a word " + "')")
    >>> prose(v4.new_notebook(cells=[long, v4.new_code_cell("print('one graph')")]))
    ['cell 1: it shows 105 characters of prose: write them in Markdown, and print a short result']
    """
    found = []
    for i, cell in code_cells(notebook):
        source = "\n".join(
            "" if line.lstrip()[:1] in ("%", "!") else line for line in cell.source.splitlines()
        )
        for call in ast.walk(ast.parse(source)):
            if (
                not isinstance(call, ast.Call)
                or getattr(call.func, "id", getattr(call.func, "attr", "")) not in SHOWS
            ):
                continue
            said = sum(_said(part) for part in ast.walk(call))
            if said > MOST_SAID:
                found.append(
                    f"cell {i}: it shows {said} characters of prose: write them in Markdown, and print a short result"
                )
    return found


def _said(node: ast.AST) -> int:
    """How many characters of words a literal holds; a single word, such as a column's name, is none."""
    words = isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip()
    return len(node.value) if words else 0  # type: ignore[attr-defined]


def numbers(notebook: Any) -> list[str]:
    """Numbers with a unit in Markdown that no output or code above them shows; and measured times in Markdown.

    A number with a unit, such as '320 breaks', has to stand in an output above together with that unit, or in the code
    that made the output. A time has no place in Markdown, unless its sentence says where it comes from. The first cell,
    the map of the lessons and the lines that declare an exercise are left out, and so is what stands in `code`.

    >>> import nbformat.v4 as v4
    >>> made = v4.new_code_cell("print(rec)", outputs=[v4.new_output("stream", text="rank 0: 440 regions")])
    >>> wrong = v4.new_markdown_cell("It enters 440 regions in 12 ms, and has 7 breaks.")
    >>> for line in numbers(v4.new_notebook(cells=[v4.new_markdown_cell("# Title"), made, wrong])):
    ...     print(line)
    cell 3: '12 ms' is a time: print it, or say where it is cited from
    cell 3: no output above shows '7 breaks'
    """
    found, above = [], []
    for i, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code":
            shown = [text for output in cell.outputs for text in _texts(output)]
            above.append(" ".join([cell.source, *shown]))
        elif cell.cell_type == "markdown" and i > 1 and MAP not in cell.metadata.get("tags", ()):
            for sentence in _sentences(cell.source):
                for value, space, unit in _NUMBER.findall(sentence):
                    kind = (
                        unit
                        if unit in _UNITS or unit in _TIMES
                        else re.sub(r"(ie)?s$", lambda m: "y" * bool(m[1]), unit)
                    )
                    said = f"{value}{space}{unit}"
                    if kind in _TIMES:
                        if not _SOURCED.search(sentence):
                            found.append(
                                f"cell {i}: {said!r} is a time: print it, or say where it is cited from"
                            )
                    elif kind in _UNITS and not _SOURCED.search(sentence):
                        stem = kind.rstrip("y")
                        number = re.compile(rf"(?<![\w.]){re.escape(value.replace(',', ''))}(?![\w]|\.\d)")
                        if not any(number.search(text.replace(",", "")) and stem in text for text in above):
                            found.append(f"cell {i}: no output above shows {said!r}")
    return found


def _sentences(source: str) -> Iterator[str]:
    """The sentences of a Markdown cell, without code, links, pictures and the lines that declare an exercise."""
    kept = re.sub(
        r"```.*?```|`[^`]*`|\]\([^)]*\)|\*\*Exercise\*\*.*?(?=\n\n|\Z)", " ", source, flags=re.DOTALL
    )
    for paragraph in re.split(r"\n\s*\n|\n(?=[*#|])", kept):
        yield from re.split(r"(?<=[.?!:])\s+", " ".join(paragraph.split()))


def size(path: Path) -> list[str]:
    """A file that is too large to open with ease."""
    there = path.stat().st_size
    if there <= MOST_BYTES:
        return []
    return [
        f"it has {there / 1e6:.2f} MB, and {MOST_BYTES / 1e6:g} MB is the most: draw fewer or smaller figures"
    ]


def _unseen(cell: Any, index: int) -> Iterator[str]:
    """What a reader who sees no pictures, or has no kernel, would miss in one output."""
    output = cell.outputs[index]
    data = output.get("data", {})
    if _pictures(output) and not alt_text(cell, index):
        yield (
            "its figure has no text summary: labkit's figures bring one; give another one with "
            "`display(figure, metadata={'image/png': {'alt': ...}})`, or print a line directly under it"
        )
    if WIDGET in data or WIDGET_REPR.search(data.get("text/plain", "")):
        yield "its output is a live widget: show a figure and a line of text with it"
    markup = data.get("text/html", "")
    for picture in re.findall(r"<img\b[^>]*>", markup):
        if not re.search(r"""\balt=(["'])\s*[^\s"']""", picture):
            yield "a picture in its HTML has no alt text"
    for drawing in re.findall(r"<svg\b.*?</svg>", markup, re.DOTALL):
        if not re.search(r"<title>\s*\S|\baria-(label|labelledby|hidden)=", drawing):
            yield "a drawing in its HTML has no <title> and no aria-label"


def _pictures(output: Any) -> list[str]:
    return [kind for kind in output.get("data", {}) if kind.startswith("image/")]


def _headings(notebook: Any) -> Iterator[tuple[int, int, str]]:
    for i, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "markdown":
            continue
        fence = ""
        for line in cell.source.splitlines():
            mark = re.match(r" {0,3}(`{3,}|~{3,})", line)
            if mark and not fence:
                fence = mark[1]
            elif mark and mark[1].startswith(fence):
                fence = ""
            elif not fence and (heading := re.match(r" {0,3}(#{1,6})\s+(.*?)[\s#]*$", line)):
                yield i, len(heading[1]), heading[2]


def _texts(output: Any) -> Iterator[str]:
    yield output.get("text", "")
    yield from output.get("traceback", ())
    for kind, value in output.get("data", {}).items():
        # a PNG's base64 holds any short word by chance
        if not kind.startswith("image/") or kind == "image/svg+xml":
            yield value if isinstance(value, str) else str(value)


def _paths(text: str) -> list[str]:
    """Paths of this machine in `text`: in the repository, the home folder, the environment or a temporary folder."""
    places = {str(ROOT), str(Path.home()), sys.prefix, tempfile.gettempdir(), "/tmp", "/home", "/Users"}
    places -= {"/", "/usr", "/usr/local", ""}
    longest_first = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True))
    return sorted(set(re.findall(rf"(?<![\w.~-])(?:{longest_first})(?:/[^\s'\"<>:,)\]]*|\b)", text)))
