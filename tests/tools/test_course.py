"""The map of the lessons: read from their first cells, written in two places, and stale where it differs."""

from __future__ import annotations

import nbformat
import pytest
from nbformat import v4

from tools import course, fit

HEAD = """# {title}

**The question.** Who waits
for whom?

**Needs.** {needs}

**Covers.** Topic 11 | 12 (experiment 1).

The story."""


def head(title="05 · The trap", needs="20 minutes, 3 of them to run. Two ranks, e.g. on a laptop."):
    return HEAD.format(title=title, needs=needs)


@pytest.fixture
def checkout(tmp_path):
    """Two lessons, the first with a place for the map, and a README with a list."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    place = v4.new_markdown_cell("## The lessons\n\nWords.\n\n", id="map", metadata={"tags": [fit.MAP]})
    cells = {
        course.FRONT: [
            v4.new_markdown_cell(head("00 · Start here", "5 minutes. Any machine."), id="a"),
            place,
        ],
        "05_trap": [v4.new_markdown_cell(head(), id="b")],
        "06_more": [v4.new_markdown_cell(head("06 · More", "9 minutes, optional. Two ranks."), id="c")],
    }
    for name, mine in cells.items():
        nbformat.write(v4.new_notebook(cells=mine), folder / f"{name}.ipynb")
    (folder / "scratch.ipynb").write_text("not a lesson")
    (tmp_path / "README.md").write_text(
        "# R\n\n| lesson | the question |\n|---|---|\n| old | old |\n\nEnd.\n"
    )
    return tmp_path


def test_the_map_is_written_once_and_stale_after_a_change(checkout):
    front, readme = checkout / "notebooks" / f"{course.FRONT}.ipynb", checkout / "README.md"
    assert sorted(course.stale(checkout)) == [f"{course.FRONT}.ipynb", "README.md"]
    assert course.write(checkout) == [front, readme]
    assert course.write(checkout) == [] and course.stale(checkout) == []
    place = nbformat.read(front, as_version=4).cells[1]
    assert place.source.splitlines() == [
        "## The lessons",
        "",
        "Words.",
        "",
        "| lesson | the question | minutes | to run |",
        "|---|---|---|---|",
        "| [00 · Start here](00_start_here.ipynb) | Who waits for whom? | 5 |  |",
        "| [05 · The trap](05_trap.ipynb) | Who waits for whom? | 20 | 3 |",
        "| [06 · More](06_more.ipynb) | Who waits for whom? *Optional.* | 9 |  |",
        "| *All but the optional ones* | | 25 | 3 |",
    ]
    assert readme.read_text() == (
        "# R\n\n| lesson | the question |\n|---|---|\n"
        "| [00_start_here](notebooks/00_start_here.ipynb) | Who waits for whom? |\n"
        "| [05_trap](notebooks/05_trap.ipynb) | Who waits for whom? |\n"
        "| [06_more](notebooks/06_more.ipynb) | Who waits for whom? |\n\nEnd.\n"
    )
    other = checkout / "notebooks" / "05_trap.ipynb"
    other.write_text(other.read_text().replace("20 minutes", "25 minutes"))
    assert course.stale(checkout) == [f"{course.FRONT}.ipynb"]
    (checkout / "notebooks" / "07_next.ipynb").write_text(other.read_text())
    assert sorted(course.stale(checkout)) == [f"{course.FRONT}.ipynb", "README.md"]


def test_the_news_of_the_newest_torch_and_the_table_of_all_come_from_the_ledger(checkout):
    readme, page = checkout / "README.md", checkout / "docs" / "versions.md"
    page.parent.mkdir()
    page.write_text(
        "# V\n\n| since when | the fact | what to do | lesson |\n|---|---|---|---|\n| old | a | b | c |\n"
    )
    readme.write_text(
        readme.read_text() + "\n| since | the fact | lesson |\n|---|---|---|\n| old | a | b |\n"
    )
    assert sorted(course.stale(checkout)) == [f"{course.FRONT}.ipynb", "README.md", "versions.md"]
    course.write(checkout)
    news, every = readme.read_text().partition("| since |")[2], page.read_text()
    newest = [line for line in every.splitlines() if line.startswith(("| since 2.15 ", "| until 2.15 "))]
    assert newest and news.count("| since 2.15 |") == len(newest)
    assert "2.13" not in [line.split("|")[1] for line in news.splitlines()[1:]] and "| until 2.13 |" in every
    assert "| old |" not in news + every and "](../notebooks/" in every and "](notebooks/" in news
