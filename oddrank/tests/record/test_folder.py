"""`read` on traces that torch wrote: the same numbers as `record()` in the process, and each fact at its line."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
from oddrank.record import Compile, read

pytestmark = pytest.mark.slow

# what only the process knows, or only a clock
NOT_IN_A_TRACE = {"at_collective", "seconds", "backend_s", "backward_s", "cached", "chain"}


def lines_of(folder: Path, *starts: str) -> list[int]:
    """The numbers of lines of the program that begin so, indentation aside."""
    lines = (folder / "program.py").read_text(encoding="utf-8").splitlines()
    return [next(n for n, line in enumerate(lines, 1) if line.strip().startswith(start)) for start in starts]


def said(folder: Path, rank: int) -> dict:
    return json.loads((folder / f"record_{rank}.txt").read_text(encoding="utf-8"))


def test_a_folder_has_the_numbers_of_a_record_in_the_process(job):
    """The same compiles, runs, executed breaks and facts, rank by rank."""
    found = read(job / "traces", sorted(job.glob("step_*.json")))
    assert found.ranks == [0, 1] and not found.notes
    counted = [f.name for f in fields(Compile) if f.name not in NOT_IN_A_TRACE]
    shown = ("compile", "file", "line", "func", "kind", "name", "text", "hints", "via", "report")
    for rank in found.ranks:
        own = said(job, rank)
        part = json.loads(json.dumps(found.of_ranks([rank]).compiles.dicts()))
        assert [[c[k] for k in counted] for c in part] == [[c[k] for k in counted] for c in own["compiles"]]
        for kind in ("break", "gave-up", "def", "recompile", "collective", "op"):
            of_folder = [m for m in found.marks if m.rank == rank and m.kind == kind]
            if kind == "op":  # of the graph of Dynamo, which both have
                of_folder = [m for m in of_folder if m.stage == "dynamo"]
            mine = [[getattr(m, k) for k in shown] for m in of_folder]
            theirs = [
                [m[k] for k in shown]
                for m in own["marks"]
                if m["kind"] == kind and m["stage"] in ("", "dynamo")
            ]
            assert json.loads(json.dumps(mine)) == theirs, kind
        (count,), (counts,) = found.of_ranks([rank]).counts.dicts(), own["counts"]
        same = (
            "compiles",
            "graphs",
            "static_breaks",
            "gave_up",
            "recompiles",
            "regions",
            "breaks",
            "graph_runs",
        )
        assert [count[k] for k in same] == [counts[k] for k in same]
    first, second = found.counts
    assert first.breaks > second.breaks > 0  # rank 0 prints


def test_each_fact_stands_at_its_line(job):
    """A collective at the line that called it, a break at the line of the frame, not in torch's files."""
    reduce, call, printed, loop = lines_of(
        job, "dist.all_reduce(y)", "y = hidden(y)", "print(", "x = block(x)"
    )
    assert reduce == 18
    found = read(job / "traces")
    assert all(Path(m.file) == job / "program.py" for m in found.marks if m.kind != "op")
    for rank in (0, 1):
        at = Counter((m.kind, m.line) for m in found.marks if m.rank == rank and m.kind != "op")
        assert {line for kind, line in at if kind == "collective"} == {reduce}
        assert {line for kind, line in at if kind == "break"} == ({call, printed} if rank == 0 else {call})
        assert {line for kind, line in at if kind == "gave-up"} == {loop}
    collectives = [m for m in found.marks if m.kind == "collective"]
    assert {(m.name, m.func, m.exact) for m in collectives} == {("all_reduce", "Block.forward", False)}
    assert all(re.search(r"torch.distributed", m.via) for m in collectives)
    assert all(row.runs is None for row in found.compiles)  # nothing was profiled
    # where the program is not at hand, torch's line is all there is
    moved = job / "moved"
    (job / "program.py").rename(moved)
    try:
        lost = [m for m in read(job / "traces").marks if m.kind == "collective"]
    finally:
        moved.rename(job / "program.py")
    assert len(lost) == len(collectives) and all("distributed" in m.file and m.exact for m in lost)


def test_inductors_provenance_moves_nothing(alone):
    """Kernels stand at exact lines then; the collective at its caller's, as without."""
    (reduce, linear) = lines_of(alone, "dist.all_reduce(y)", "y = self.linear(x)")
    found = read(alone / "traces", [alone / "step_0.json"])
    assert {m.line for m in found.marks if m.kind == "collective"} == {reduce}
    kernels = [m for m in found.marks if m.kind == "kernel"]
    assert kernels and all(m.exact for m in kernels) and linear in {m.line for m in kernels}
    assert reduce in {m.line for m in kernels if "all_reduce" in m.name}
    own = said(alone, 0)
    assert [c.runs for c in found.compiles] == [c["runs"] for c in own["compiles"]]
    assert found.counts[0].breaks == own["counts"][0]["breaks"] > 0


def test_a_trace_cut_off_marks_the_compile_that_had_not_ended(job, tmp_path):
    """A job that was killed in a compile: the rest of the trace is as it was."""
    whole = read(job / "traces").of_ranks([1])
    (log,) = (job / "traces").glob("*rank_1_*.log")
    content = log.read_bytes()
    end = content.rindex(b'"dynamo_output_graph"')
    (tmp_path / log.name).write_bytes(content[: content.index(b"\n", end) + 20])
    cut = read(tmp_path)
    assert (
        cut.compiles[-1].outcome == "unfinished"
        and [r.outcome for r in cut.compiles].count("unfinished") == 1
    )
    before = [row for row in whole.compiles if row.id != cut.compiles[-1].id]
    assert cut.compiles[:-1] == before[: len(cut.compiles) - 1]
    (mark,) = (m for m in cut.marks if m.kind == "unfinished")
    assert (mark.compile, mark.line) == (cut.compiles[-1].id, cut.compiles[-1].line)


@pytest.mark.kernel
def test_the_lines_of_a_notebooks_cells_are_found_by_the_notebook(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [
        "import torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)",
        "class Net:\n    def step(self, x):\n        y = x * 2\n        dist.all_reduce(y)\n        return y + 1",
        "torch.compile(Net().step, backend='eager')(torch.ones(3))",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    monkeypatch.setenv("TORCH_TRACE", str(tmp_path / "traces"))
    nbclient.NotebookClient(book, timeout=None, kernel_name="python3").execute()
    nbformat.write(book, tmp_path / "book.ipynb")
    for name in os.listdir(tmp_path):  # the kernel's own copy of a cell may still be there
        if name.startswith("ipykernel_"):
            shutil.rmtree(tmp_path / name)
    with_book = read(tmp_path / "traces", notebooks=[tmp_path / "book.ipynb"])
    (mark,) = (m for m in with_book.marks if m.kind == "collective")
    assert (mark.line, mark.func, mark.place) == (4, "Net.step", "In [?]:4 (Net.step)")
    (without,) = (m for m in read(tmp_path / "traces").marks if m.kind == "collective")
    assert "distributed" in without.file
