"""The map of the lessons: read from their first cells, written in two places, and stale where it differs."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import nbformat
import pytest
from nbformat import v4

from ledger.facts import load
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


def test_a_lesson_says_what_it_asks_needs_and_covers():
    lesson = course.parse("05_trap", head())
    assert (lesson.title, lesson.question) == ("05 · The trap", "Who waits for whom?")
    assert (lesson.minutes, lesson.running, lesson.hardware) == (20, 3, "Two ranks, e.g. on a laptop")
    assert lesson.sources == "Topic 11 | 12 (experiment 1)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("## 05", "05_trap: no title"),
        (head().replace("**Covers.**", "Covers:"), r"05_trap: no paragraph \*\*Covers"),
        (
            head(needs="About half an hour. Two ranks."),
            "05_trap: .*minutes as a number.* got 'About half an hour",
        ),
        (head(needs="20 minutes."), "minutes as a number, then hardware"),
    ],
)
def test_a_first_cell_out_of_form_is_named(text, said):
    with pytest.raises(ValueError, match=said):
        course.parse("05_trap", text)


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


def test_a_fact_of_the_newest_torch_without_half_a_line_for_the_readme_is_named(checkout, monkeypatch):
    facts = load()
    bare = tuple(
        replace(fact, news="") if fact.id == "guards.static-sources" else fact for fact in facts.facts
    )
    monkeypatch.setattr(course, "load", lambda: replace(facts, facts=bare))
    with pytest.raises(ValueError, match=r"guards\.static-sources differs on torch 2\.15: give it `news`"):
        course.stale(checkout)


def test_writing_the_map_keeps_the_bytes_that_saving_a_notebook_makes(checkout):
    from tools import notebooks

    front = checkout / "notebooks" / f"{course.FRONT}.ipynb"
    course.write(checkout)
    before = front.read_bytes()
    notebooks._write(nbformat.read(front, as_version=4), front)
    assert front.read_bytes() == before


def test_a_file_without_a_place_for_the_map_is_named(checkout):
    front, readme = checkout / "notebooks" / f"{course.FRONT}.ipynb", checkout / "README.md"
    text = readme.read_text()
    readme.write_text("# R\n")
    with pytest.raises(ValueError, match="README.md needs one table"):
        course.write(checkout)
    readme.write_text(text)
    notebook = json.loads(front.read_text())
    notebook["cells"][1]["metadata"] = {}
    front.write_text(json.dumps(notebook))
    with pytest.raises(
        ValueError, match="00_start_here.ipynb needs one markdown cell with the tag 'lesson-map'"
    ):
        course.write(checkout)


def test_the_command_line_checks_without_writing(checkout, monkeypatch, capsys):
    for name in ("stale", "write"):
        monkeypatch.setattr(course, name, functools.partial(getattr(course, name), checkout))
    assert course.main(["--check"]) == 1
    assert "README.md: what is generated in it is stale: `make map` writes it" in capsys.readouterr().err
    assert course.main([]) == 0 and "README.md: written" in capsys.readouterr().out
    assert course.main(["--check"]) == 0
