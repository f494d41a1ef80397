"""What stands beside each line of functions of many shapes, and where two ranks differ."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from oddrank.record import read
from oddrank.source import annotate, compare
from oddrank.source.listing import Cell, Listing, Section

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def trace(folder: Path, program: Path, ranks: int, **env: str) -> Path:
    """Run a program once for each rank, with TORCH_TRACE; the folder has a file for each."""
    for rank in range(ranks):
        mine = folder / f"of_{rank}"
        more = {"TORCH_TRACE": str(mine), "RANK": str(rank), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, str(program)], env={**os.environ, **more, **env}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]
        (log,) = mine.glob("*.log")
        (folder / "traces").mkdir(exist_ok=True)
        shutil.move(log, folder / "traces" / f"trace_rank_{rank}.log")
    return folder / "traces"


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> Path:
    """The program's text is beside its traces, so that a test may change it."""
    folder = tmp_path_factory.mktemp("shapes")
    shutil.copy(HERE / "shapes_of_code.py", folder)
    return trace(folder, folder / "shapes_of_code.py", 2)


def drawn(cell: Cell) -> str:
    """A cell as the comments of the program have it."""
    if not cell.block:
        return "e" * cell.eager + "!" * cell.ends or "."
    block = cell.block.lower() if cell.between else "".join(cell.graphs)
    only = f"/{cell.only}" if cell.only else ""
    return f"{'^' * cell.inlined}{block}{'!' * cell.ends}{only}"


def innermost(listing: Listing, n: int) -> Section:
    around = [s for s in listing.sections if s.first <= n <= s.rows[-1].number]
    return max(around, key=lambda s: s.first)


def test_each_line_has_what_its_comment_says(traces):
    listing = annotate(read(traces)).listing
    wrong, checked, notes = [], 0, {}
    for section in listing.sections:
        for row in section.rows:
            notes |= {(section.name, note.kind): (row.text.strip(), note.words) for note in row.notes}
            said = re.search(r"#: (.+)", row.text)
            for cell in row.cells * bool(said):
                right = said[1] if section is innermost(listing, row.number) else "."
                checked += 1
                if drawn(cell) != right:
                    wrong.append((section.name, row.number, row.text, drawn(cell)))
    assert not wrong and checked > 80
    differs = [row.text for section in listing.sections for row in section.rows if row.differs]
    assert ["ranks differ" in text for text in differs] == [True]
    line, words = notes["again", "recompile"]  # the last one, of the rest of the function
    assert line.startswith("return y * 2")
    assert words.startswith("2 times: dimension 0 of `y` changes (3 -> 4); the dtype of `y` changes")
    edges = [[c.cells[0].edge for c in s.rows] for s in listing.sections if s.name == "goes_on"]
    assert edges == [["", "", "first", "last", "", "first", "last"]]
    assert not listing.notes


def test_an_edited_file_is_quoted_and_a_missing_one_too(traces, tmp_path):
    before = annotate(read(traces)).listing
    program = traces.parent / "shapes_of_code.py"
    text = program.read_text(encoding="utf-8")
    try:
        for changed in (text.replace("def branches", "\n\n\ndef branches"), ""):
            program.write_text(changed, encoding="utf-8")
            if not changed:
                program.unlink()
            listing = annotate(read(traces)).listing
            assert all(s.first in [row.number for row in s.rows] and s.rows for s in listing.sections)
            assert any("is not what it was" in note for note in listing.notes) == bool(changed)
            lines = text.split("\n")
            for section in listing.sections:
                assert all(
                    row.text.strip() == lines[row.number - 1].strip() for row in section.rows if row.text
                )
            was = {
                (s.name, row.number)
                for s in before.sections
                for row in s.rows
                if any(c.graphs for c in row.cells)
            }
            now = {
                (s.name, row.number)
                for s in listing.sections
                for row in s.rows
                if any(c.graphs for c in row.cells)
            }
            assert {n for _, n in now} == {n for _, n in was}
    finally:
        program.write_text(text, encoding="utf-8")


def test_64_ranks_are_grouped_and_the_odd_one_stands_alone(traces, tmp_path):
    for rank in range(64):
        text = (traces / f"trace_rank_{int(rank == 5)}.log").read_text(encoding="utf-8")
        (tmp_path / f"trace_rank_{rank}.log").write_text(re.sub(r'"rank": \d+', f'"rank": {rank}', text))
    listing = annotate(read(tmp_path)).listing
    lanes = {s.name: [(lane.head, lane.said, len(lane.ranks)) for lane in s.lanes] for s in listing.sections}
    assert lanes["branches"] == [("all", "", 64)]
    assert lanes["calls"] == [("63×", "0–4, 6–63", 63), ("5", "", 1)]
    notes = [n for s in listing.sections for row in s.rows for n in row.notes]
    assert ["rank 5"] == [n.who for n in notes if n.who and n.kind != "inlined"]
    # a function that the odd rank's code calls, too: each group has its own owner
    assert {n.who for n in notes if n.kind == "inlined"} == {"", "rank 5", "ranks 0–4, 6–63"}


def test_a_run_against_an_older_one_is_matched_by_its_text(traces):
    """Lines above that came and went change nothing; functions of one name are told apart."""
    old = annotate(read(traces))
    same = compare(old, annotate(read(traces))).listing
    assert [len(s.rows) for s in same.sections] == [len(s.rows) for s in old.listing.sections]
    assert not any(row.differs or row.change for s in same.sections for row in s.rows)
    assert [lane.head for lane in same.sections[0].lanes] == ["before", "after"]
    folder = traces.parent / "newer"
    folder.mkdir()
    text = (traces.parent / "shapes_of_code.py").read_text(encoding="utf-8")
    text = text.replace("@compiled\ndef branches", "# more\n\n\n@compiled\ndef branches")
    text = text.replace("        y = y.tan()  #: A\n", "        y = y.tan()  #: A\n        hidden()\n")
    (folder / "shapes_of_code.py").write_text(text, encoding="utf-8")
    new = annotate(read(trace(folder, folder / "shapes_of_code.py", 1)))
    rows = {s.name: s.rows for s in compare(old, new).listing.sections}
    assert [row.text.strip() for row in rows["branches"] if row.change] == ["hidden()"]
    was = next(s for s in old.listing.sections if s.name == "goes_on")
    assert [row.number - 3 - 1 for row in rows["goes_on"]] == [row.number for row in was.rows]
    assert not any(row.differs for row in rows["goes_on"])
