"""The marks beside a line are what torch's own logs say, on every program of the golden tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict

import pytest
from oddrank.places import is_library, label
from oddrank.record import read
from oddrank.source import annotate
from oddrank.source.listing import Cell, Listing, Note, Operator, Row, Section
from torch_says import Said, records

pytestmark = pytest.mark.slow
AT = re.compile(r"# (?:.*\b)?File: (.+?):(\d+) in ([^,]+), code")
FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')
BREAKS = ("break", "gave-up", "cause")


def of_rank(listing: Listing, rank: int) -> list[tuple[Section, Row, Cell]]:
    """Every row with the cell of this rank's lane."""
    found = []
    for section in listing.sections:
        k = next(i for i, lane in enumerate(section.lanes) if rank in lane.ranks)
        found += [(section, row, row.cells[k]) for row in section.rows]
    return found


def program_lines(lines: list[str]) -> list[tuple[str, int, bool]]:
    """The program's lines of a printed graph that something is called at."""
    found, at = [], None
    for line in lines:
        if told := AT.search(line):
            at = label(told[1]), int(told[2]), is_library(told[1])
        elif "No stacktrace" in line:
            at = None
        elif at and (made := re.match(r"\s*[^#\s].*? = ([^;]*)", line)) and "def forward" not in line:
            # a name, an attribute or an item is read, and nothing is called
            if not re.fullmatch(r"[\w.]+(\[.*\])?", made[1]):
                found.append(at)
    return found


@pytest.fixture(scope="module")
def annotated(golden):
    """Each run with its listing from the trace alone."""
    return [(run, annotate(read(run.folder / "trace"), libraries=True).listing) for run in golden]


def lines_agree(said: list[Said], listing: Listing, rank: int, libraries: bool = False) -> int:
    """Assert that a rank's lines with operators are those of the printed graphs; returns how many they are."""
    rows = [(s, row, cell) for s, row, cell in of_rank(listing, rank) if libraries or not s.library]
    drawn = {(s.file, row.number): row for s, row, cell in rows if cell.graphs}
    printed: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    for i, one in enumerate(one for one in said if one.kind == "graph_code"):
        for file, line, library in program_lines(one.lines):
            if libraries or not library:
                printed[file, line][i] += 1
    # a graph that a backend refused is none
    refused = {(s.file, row.number) for s, row, cell in rows if cell.error}
    # torch's line of a collective is its own code's, and the listing has the caller's
    moved = {at for at, row in drawn.items() if "collective" in kinds(row)}
    assert not printed.keys() - drawn.keys() - refused and not drawn.keys() - printed.keys() - moved
    alike = printed.keys() - moved - refused
    shown = {at: sum(op.times for op in operators(drawn[at], rank)) for at in alike}
    assert all(0 < n <= printed[at].total() for at, n in shown.items())
    once = [at for at in shown if len(printed[at]) == 1]
    # but for a few that call a graph inside of theirs
    assert sum(shown[at] == printed[at].total() for at in once) >= 0.9 * len(once)
    return len(printed)


def test_the_lines_of_a_graph_are_those_that_torch_prints(annotated):
    for run, listing in annotated:
        assert all(lines_agree(run.said(rank), listing, rank) > 20 for rank in range(run.ranks))


MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=64, **sizes))
run = torch.compile(model, backend="aot_eager")
for n in (8, 12):
    ids = torch.arange(n)[None]
    run(ids, labels=ids).loss.backward()
"""


@pytest.mark.full
def test_a_model_of_a_library_is_shown_whole(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    env = {"TORCH_TRACE": str(tmp_path / "trace"), "TORCH_LOGS": "graph_code", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "model.py")],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    listing = annotate(read(tmp_path / "trace")).listing
    assert lines_agree(list(records(done.stderr.splitlines())), listing, 0, libraries=True) > 30
    assert {"LlamaAttention.forward", "LlamaMLP.forward"} <= {s.name for s in listing.sections}


def operators(row: Row, rank: int) -> list[Operator]:
    return [
        op for who, stages in row.operators.items() if said_of(who, rank) for op in stages.get("Dynamo", ())
    ]


def said_of(who: str, rank: int) -> bool:
    return who in ("", "all ranks") or rank in map(int, re.findall(r"\d+", who))


def kinds(row: Row) -> set[str]:
    return {note.kind for note in row.notes}


def test_breaks_stand_in_the_stack_that_torch_prints(annotated):
    for run, listing in annotated:
        for rank in range(run.ranks):
            noted = {
                (s.file, row.number): [n for n in row.notes if n.kind in BREAKS and said_of(n.who, rank)]
                for s, row, _ in of_rank(listing, rank)
            }
            noted = {at: notes for at, notes in noted.items() if notes}
            said = ["\n".join(one.lines) for one in run.said(rank) if one.kind == "graph_breaks"]
            stacks = [[(label(f), int(n)) for f, n, _ in FRAME.findall(text)] for text in said]
            assert len(stacks) > 20
            for text, stack in zip(said, stacks, strict=True):
                there = [note for at in stack for note in noted.get(at, ())]
                # it names what torch names, in its own words or those of the title
                names = re.findall(r"`([^`]+)`", text.partition("Explanation: ")[2].partition("\n")[0])
                names = names or re.findall(r"[\w-]+", text.partition("Reason: ")[2])
                assert [note for note in there if any(name in said_in(note) for name in names)], text
            # torch merges neighbours of one name and may lose a caller's line: the note still names the inner one
            lost = [at for at in noted if not any(at in stack for stack in stacks)]
            inner = {f"line {line})" for stack in stacks for _, line in stack}
            assert all(any(note.words.endswith(tuple(inner)) for note in noted[at]) for at in lost)
            assert len(lost) < len(noted) / 4


def said_in(note: Note) -> str:
    return f"{note.words} {note.explanation}"


def times(note: Note) -> int:
    found = re.match(r"(\d+) times: ", note.words)
    return int(found[1]) if found else 1


def test_recompiles_are_those_that_torch_logs(annotated):
    for run, listing in annotated:
        for rank in range(run.ranks):
            logged, counted, refused = Counter(), Counter(), set()
            for section, row, _ in of_rank(listing, rank):
                for note in (note for note in row.notes if said_of(note.who, rank)):
                    counted[section.file, section.first] += times(note) * (note.kind == "recompile")
                    refused |= {(section.file, section.first)} if note.kind == "limit" else set()
            for one in (one for one in run.said(rank) if one.kind == "recompiles"):
                file, line = re.search(r" in (.+):(\d+)$", one.lines[0]).groups()
                around = [
                    s for s in listing.sections if s.file == label(file) and s.first <= int(line) <= last(s)
                ]
                logged[label(file), max(s.first for s in around)] += 1
            assert len(logged) > 1 and counted.keys() >= logged.keys()
            assert {at for at in counted if counted[at] != logged[at]} == refused
            assert all(logged[at] > counted[at] > 0 for at in refused)


def last(section: Section) -> int:
    return section.rows[-1].number


def test_what_runs_in_a_step_is_what_the_tables_count(golden):
    """Executed breaks, runs of graphs and eager collectives, of each rank by itself and of all together."""
    seen = Counter()
    for run in golden:
        for name, tables in run.tables():
            for rank in tables.ranks:
                mine = tables.of_ranks([rank])
                shown = annotate(mine, libraries=True).listing
                rows = [row for section in shown.sections for row in section.rows]
                breaks = sum(a_step(note) for row in rows for note in row.notes if note.kind in BREAKS)
                calls = [n for row in rows for n in row.notes if n.kind == "collective" and n.runs]
                (counts,) = mine.counts
                eager = [c for c in mine.collectives if c.file and not is_library(c.file) and not c.compile]
                assert breaks == counts.breaks, name
                assert sum(map(a_step, calls)) * counts.forwards == sum(c.runs for c in eager), name
                seen += Counter(breaks=breaks, calls=len(calls), recompiles=counts.recompiles)
    assert min(seen.values()) > 20


def a_step(note: Note) -> float:
    return float(note.runs.removesuffix("× a step") or 0)
