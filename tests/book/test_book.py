"""The lessons as a website: every page is there, leads everywhere, and reads without a kernel, a network or eyes."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote, urldefrag

import nbformat
import pytest
from book_pages import ROOT, Page, build

from labkit import files
from tools import course

pytestmark = pytest.mark.slow
LESSONS = [path.stem for path in files.lessons()]


def local(page: Page, address: str):
    """The file and anchor that an address on a page leads to; None where it leaves the book."""
    if re.match(r"[a-z]+:|//", address):
        return None
    name, anchor = urldefrag(address.partition("?")[0] if "#" not in address else address)
    target = page.path.parent / unquote(name.partition("?")[0]) if name else page.path
    return target, anchor


def test_every_lesson_is_a_page(book):
    assert {f"{name}.html" for name in LESSONS} <= set(book)
    for name in LESSONS:
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        code = [c.source.splitlines()[0] for c in notebook.cells if c.cell_type == "code"]
        assert all(line.split("(")[0].strip() in book[f"{name}.html"].words for line in code)
        printed = [o.text for c in notebook.cells for o in c.get("outputs", []) if o.get("name") == "stdout"]
        assert all(text.splitlines()[0] in book[f"{name}.html"].words for text in printed)


def test_the_front_page_is_start_here_with_the_map(book):
    front = book["index.html"]
    assert front.html == book[f"{course.FRONT}.html"].html
    for lesson in course.lessons():
        own = book[f"{lesson.name}.html"]
        for page, cells in (
            (front, (lesson.title, lesson.question, str(lesson.minutes))),
            (own, (lesson.hardware, lesson.sources)),
        ):
            words = " ".join(page.words.split()).replace("“", '"').replace("”", '"').replace("’", "'")
            assert all(cell.replace("`", "") in words for cell in cells)  # shown as code
        assert f"{lesson.name}.html" in front.links or lesson.name == course.FRONT


def test_every_page_leads_to_every_lesson_and_to_search(book):
    for name, page in book.items():
        for lesson in LESSONS:
            there = f"{lesson}.html"
            assert there in page.links or (name in (there, "index.html") and "#" in page.links), (name, there)
        assert 'action="search.html"' in page.html or name == "search.html"
    ordered = [
        re.findall(r'rel="(prev|next)" title="[^"]*" href="([^"]*)"', book[f"{n}.html"].html) for n in LESSONS
    ]
    for i, found in enumerate(ordered[1:], 1):
        assert ("prev", f"{LESSONS[i - 1]}.html") in found


def test_search_knows_words_of_every_lesson(book):
    text = (book["search.html"].path.parent / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    assert set(LESSONS) <= set(index["docnames"])
    assert {"zygot", "cliff"} & (set(index["terms"]) | set(index["titleterms"]))
    assert any("searchindex.js" in address for address in book["search.html"].files)


def test_no_link_picture_script_or_style_is_missing(book):
    for page in book.values():
        for address in [*page.links, *page.files]:
            found = local(page, address)
            if found is None:
                continue
            target, anchor = found
            assert target.is_file(), f"{page.path.name}: {address}"
            if anchor and target.name in book:
                assert anchor in book[target.name].anchors, f"{page.path.name}: {address}"


def test_nothing_is_fetched_from_a_network(book):
    for page in book.values():
        assert [address for address in page.files if re.match(r"(https?:)?//", address)] == []
        assert not re.search(r"<script[^>]*(mathjax|require\.js|cdn)", page.html, re.IGNORECASE)


def test_every_picture_has_a_text(book):
    drawn = 0
    for page in book.values():
        for picture in page.pictures:
            drawn += 1
            alt = picture.get("alt") or ""
            assert len(alt.split()) > 2 and not re.match(r"_?images/|<", alt), (
                page.path.name,
                picture["src"],
            )
    assert drawn >= 8  # lesson 04 alone has eight


def test_headings_nest(book):
    for page in (book[f"{name}.html"] for name in LESSONS):
        levels = page.headings
        assert levels.count(1) == 1 and levels[0] == 1, (page.path.name, levels)
        steps = zip(levels, levels[1:], strict=False)
        assert all(later <= above + 1 for above, later in steps), (page.path.name, levels)


def test_no_page_shows_what_is_left_of_a_widget(book):
    for page in book.values():
        assert not re.search(r"Loading widget|\w+\(children=\(|widget-view\+json", page.html)


def test_solutions_are_folded(book):
    folded = re.findall(
        r"<details class=[^>]*hide[^>]*>.*?</details>", book["00_start_here.html"].html, re.DOTALL
    )
    assert any("largest_solution" in re.sub(r"<[^>]+>", "", text) for text in folded)
    assert all("Show a solution" in text for text in folded)


@pytest.fixture
def one_lesson(tmp_path):
    """A small 00_start_here, and a second lesson beside it."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name in (course.FRONT, "01_next"):
        title = nbformat.v4.new_markdown_cell(f"# {name}")
        nbformat.write(nbformat.v4.new_notebook(cells=[title]), folder / f"{name}.ipynb")
    return folder / f"{course.FRONT}.ipynb"


def add(path, *cells) -> None:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells += cells
    nbformat.write(notebook, path)


FAULTS = {  # what stands in a lesson, and what the build says of it
    "[gone](no_such_lesson.ipynb)": "no_such_lesson",
    "$$\\nosuchcommand{x}$$": "formula cannot be drawn",
    "#### Deep": "Non-consecutive header level",
}


def test_a_fault_fails_the_build_and_every_fault_is_named(one_lesson, tmp_path):
    add(one_lesson, *map(nbformat.v4.new_markdown_cell, FAULTS))
    done = build(one_lesson.parent, tmp_path)
    assert done.returncode != 0
    assert [words for words, said in FAULTS.items() if said not in done.stderr] == []


def test_formulas_headings_in_outputs_and_drawings(one_lesson, tmp_path):
    drawing = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>\n'
    )
    outputs = [
        nbformat.v4.new_output(
            "display_data", data={"text/html": "<h4>A title</h4><style scoped>b {}</style>"}
        ),
        nbformat.v4.new_output(
            "display_data",
            data={"image/svg+xml": drawing},
            metadata={"image/svg+xml": {"alt": "A square stands for a rank"}},
        ),
    ]
    add(
        one_lesson,
        nbformat.v4.new_markdown_cell("A sum $\\frac{1}{2}$, and\n\n$$\\sum_i x_i$$"),
        nbformat.v4.new_code_cell("%time\nx", execution_count=1, outputs=outputs),
    )
    done = build(one_lesson.parent, tmp_path)
    assert done.returncode == 0, done.stderr
    page = Page(tmp_path / "book" / "index.html")
    assert "<mfrac>" in page.html and re.search(r'<math[^>]*display="block"', page.html)
    assert 'class="output-title">A title</p>' in page.html and "<style scoped>" not in page.html
    assert [picture["alt"] for picture in page.pictures] == ["A square stands for a rank"]
