"""A trace is data from outside: its names do nothing, other files are not shown, and a picture has an end."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from oddrank.record.tables import Compile, Line, Mark, Table, Tables
from oddrank.source import annotate, compare
from oddrank.source.builder import MOST_NOTES, MOST_ROWS, MOST_SECTIONS

EVIL = "<script>alert(1)</script>\"'\x1b]0;owned\x07\r\n\u202e&javascript:"
FILE = f"/home/ada/{EVIL}.py"


def tables(*compiles: Compile, marks: tuple[Mark, ...] = (), code: tuple[Line, ...] = ()) -> Tables:
    return Tables(Table(Compile, compiles), Table(Mark, marks), code=Table(Line, code))


class Page(HTMLParser):
    """Everything of a page that could act or load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.acts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.append(value)
            if name.startswith("on") or re.search(r"url\(|expression|javascript:", value or ""):
                self.acts.append(f"{tag} {name}")
        if tag in ("script", "iframe", "object", "embed", "link", "base", "form", "img", "svg"):
            self.acts.append(tag)


def test_names_of_a_trace_neither_run_nor_command_the_terminal():
    report = f"{EVIL} https://pytorch.org.evil.com/x https://meta-pytorch.github.io/compile-graph-break-site/gb/1.html"
    marks = [
        Mark(
            0,
            "0/0",
            FILE,
            3,
            EVIL,
            kind,
            stage,
            EVIL,
            EVIL,
            (EVIL, "javascript:1"),
            via=f"{EVIL}:7",
            report=report,
        )
        for kind in (
            "op",
            "kernel",
            "break",
            "def",
            "recompile",
            "limit",
            "error",
            "split",
            "cause",
            "symbol",
        )
        for stage in ("dynamo", "forward", "backward")
    ]
    marks += [
        Mark(
            0, "0/0", FILE, 4, EVIL, "collective", "dynamo", EVIL, EVIL, (EVIL,), exact=False, via=f"{EVIL}:7"
        )
    ]
    one = Compile(0, "0/0", FILE, 3, EVIL, outcome="graph", operators=1, reasons=(EVIL,), why=EVIL)
    found = tables(one, marks=tuple(marks), code=(Line(FILE, 3, EVIL),))
    found.notes, found.torch = [EVIL], EVIL
    shown = annotate(found, shapes=True, title=EVIL)
    for drawn in (shown, compare(shown, shown)):
        page = Page(drawn.page())
        assert not page.acts and all(
            one.startswith(("#", "https://meta-pytorch.github.io/")) for one in page.links
        )
        assert any(one.endswith("/1.html") for one in page.links)
        assert all(c.isprintable() or c == "\n" for c in drawn.text())


def test_a_file_that_is_here_is_shown_where_it_has_that_function_alone(tmp_path):
    secret = tmp_path / "settings.py"
    secret.write_text('PASSWORD = "hunter2"\n\n\ndef settings():\n    token = "hunter2"\n    return token\n')
    words = tmp_path / "passwd"
    words.write_text("root:hunter2\n" * 9)
    for file in (secret, words):
        for func in ("step", "Net.forward", "", "<module>"):
            for line in (1, 4, 5, 10**9, 0, -3):
                one = Compile(0, "0/0", str(file), line, func, outcome="graph", operators=1)
                shown = annotate(
                    tables(one, marks=(Mark(0, "0/0", str(file), line, func, "op", "dynamo", "sin"),))
                )
                assert "hunter2" not in shown.page() + shown.text(), (file, func, line)
    one = Compile(0, "0/0", str(secret), 4, "settings", outcome="graph", operators=1)
    assert "hunter2" in annotate(tables(one)).text()


def many(folder: Path, what: str) -> Tables:
    """Tables that are large in one way each."""
    file = folder / "large.py"
    step = [Compile(r, "0/0", str(file), 1, "step", outcome="graph", operators=1) for r in range(2)]
    if what == "functions":
        file.write_text("".join(f"def f{i}(x):\n    return x\n" for i in range(20_000)))
        return tables(
            *(Compile(0, f"{i}/0", str(file), 2 * i + 1, f"f{i}", outcome="graph") for i in range(20_000))
        )
    if what == "lines":
        file.write_text("def step(x):\n" + "    x = x\n" * 60_000)
        marks = (Mark(0, "0/0", str(file), n, "step", "op", "dynamo", "sin") for n in range(2, 60_000))
        return tables(*step, marks=tuple(marks))
    if what == "graphs":
        file.write_text("def step(x):\n" + "    x = x\n" * 4_000)
        rest = [
            Compile(0, f"{i}/0", str(file), 1, "step", 2 + i % 3, outcome="graph", operators=1)
            for i in range(1, 15_000)
        ]
        marks = (Mark(0, c.id, str(file), n, "step", "op", "dynamo", "sin") for c in rest for n in (4, 3_900))
        return tables(*step, *rest, marks=tuple(marks))
    if what == "branches":
        file.write_text("def step(x):\n" + "    if x:\n        y = 1\n" * 2_000 + "    return x\n")
        return tables(*step, marks=(Mark(0, "0/0", str(file), 4_002, "step", "op", "dynamo", "sin"),))
    if what == "notes":
        file.write_text("def step(x):\n    return x\n")
        kinds = ("break", "recompile", "split", "op", "kernel")
        rest = [
            Compile(0, f"0/{i}", str(file), 1, "step", outcome="graph", reasons=("x",))
            for i in range(1, 4_000)
        ]
        marks = (
            Mark(
                0,
                c.id,
                str(file),
                2,
                "step",
                kind,
                "dynamo",
                f"{kind} {c.id}" + "y" * 2_000,
                hints=("h" * 999,) * 9,
            )
            for c in rest
            for kind in kinds
        )
        return tables(*step, *rest, marks=tuple(marks))
    assert what == "quotes"
    file.write_text("def step(x):\n" + "    x = x\n" * 60_000)
    return tables(*step, code=tuple(Line(str(file), n, "x = x") for n in range(2, 60_000)))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["functions", "lines", "graphs", "branches", "notes", "quotes"])
def test_a_picture_of_large_tables_is_bounded(tmp_path, what):
    """Where the work grew with the square, each would take hours: the processor's limit is minutes."""
    code = f"""if True:
        import importlib.util, resource, sys
        from pathlib import Path
        resource.setrlimit(resource.RLIMIT_CPU, (240, 240))
        spec = importlib.util.spec_from_file_location("hostile", {__file__!r})
        hostile = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(hostile)
        from oddrank.source import annotate
        made = annotate(hostile.many(Path({str(tmp_path)!r}), {what!r}))
        rows = [row for section in made.listing.sections for row in section.rows]
        most = max((len(row.notes) for row in rows), default=0)
        print(len(made.listing.sections), len(rows), most, len(made.page()), len(made.listing.notes))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    sections, rows, most, size, notes = map(int, done.stdout.split())
    assert sections <= MOST_SECTIONS and rows <= MOST_ROWS and most <= MOST_NOTES + 1
    assert size < 40 << 20 and (notes > 0) == (what in ("functions", "lines", "quotes"))
