"""Where ranks differ: at lines where Dynamo saw something else, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from oddrank.record.tables import Collective, Compile, Mark, Table, Tables, merge
from oddrank.source import annotate

CALL = "    dist.all_reduce(y, group=mine)\n"
TEXT = f"def step(x):\n    y = x.sin()\n{CALL}{CALL}    return y\n"


@pytest.fixture
def file(tmp_path) -> str:
    (tmp_path / "model.py").write_text(TEXT)
    return str(tmp_path / "model.py")


def rank(
    file: str, n: int, groups: tuple[str, str], size: int = 4, why: tuple[str, ...] = (), **more
) -> Tables:
    """A rank that calls two collectives, each on a group; `why` are the failed guards of its later compiles."""
    first = Compile(n, "0/0", file, 1, "step", outcome="graph", operators=3)
    later = [
        Compile(n, f"0/{i}", file, 1, "step", outcome="graph", operators=3, reasons=(w,), why=w)
        for i, w in enumerate(why, 1)
    ]
    marks = [Mark(n, c.id, file, 2, "step", "op", "dynamo", ".sin", f"f32[{size}]") for c in (first, *later)]
    for c in (first, *later):
        for line, group in zip((3, 4), groups, strict=True):
            marks.append(Mark(n, c.id, file, line, "step", "op", "dynamo", "all_reduce", f"f32[{size}]"))
            marks.append(
                Mark(
                    n,
                    c.id,
                    file,
                    line,
                    "step",
                    "collective",
                    "dynamo",
                    "all_reduce",
                    f"f32[{size}]",
                    (group,),
                )
            )
    marks += [Mark(n, c.id, file, 1, "step", "recompile", name=c.why) for c in later]
    return Tables(Table(Compile, [first, *later]), Table(Mark, marks), **more)


def differs(*ranks: Tables, shapes: bool = False) -> list[int]:
    (section,) = annotate(merge(ranks), shapes=shapes).listing.sections
    return [row.number for row in section.rows if row.differs]


def mesh(file: str, n: int, second: str = "") -> Tables:
    """A rank of a mesh of four rows of two: the group of its row, and that of its column."""
    return rank(file, n, (f"row{n // 2}", second or f"column{n % 2}"))


def test_the_rows_of_a_mesh_are_alike_and_a_wrong_group_is_not(file):
    right = [mesh(file, n) for n in range(8)]
    assert differs(*right) == []
    # rank 5 calls the second one on the group of its row: the rest of its column waits for it
    assert differs(*right[:5], mesh(file, 5, "row2"), *right[6:]) == [4]
    # one that nobody else ever uses, where the others are together
    assert differs(*right[:5], mesh(file, 5, "own"), *right[6:]) == [4]
    # each rank by itself: nothing tells whether another one belongs to its group
    assert differs(*(rank(file, n, ("world", f"own{n}")) for n in range(4))) == []
    # what ran names the members
    calls = [
        Collective(0, "", "all_reduce", f"own{n}: 0, 1", file=file, line=3, func="step") for n in range(2)
    ]
    ran = [rank(file, 0, ("own0", "world")), rank(file, 1, ("own1", "world"))]
    assert differs(*ran) == []
    ran[0].collectives.extend(calls)
    assert 3 in differs(*ran)


def test_other_sizes_are_the_same_code(file):
    small, large = rank(file, 0, ("0", "0"), 3), rank(file, 1, ("0", "0"), 7)
    assert differs(small, large) == [] and differs(small, large, shapes=True) == [2, 3, 4]
    sizes = (
        "tensor 'x' size mismatch at index 0. expected 3, actual 4",
        "tensor 'x' size mismatch at index 0. expected 7, actual 8",
    )
    again = [rank(file, n, ("0", "0"), why=(why,)) for n, why in enumerate(sizes)]
    assert differs(*again) == []  # both were compiled again for the same reason, with other values
    other = rank(file, 1, ("0", "0"), why=("flag == 1",))
    assert differs(again[0], other) == [1] == differs(again[0], rank(file, 1, ("0", "0")))


def test_a_rank_without_the_function_is_a_lane_of_its_own(file):
    other = Tables(Table(Compile, [Compile(1, "0/0", "gone.py", 3, "other", outcome="graph", operators=1)]))
    sections = {s.name: s for s in annotate(merge([rank(file, 0, ("0", "0")), other])).listing.sections}
    assert [lane.ranks for lane in sections["step"].lanes] == [[0], [1]]
    assert [row.number for row in sections["step"].rows if row.differs] == [2, 3, 4]
    assert (sections["step"].graphs, sections["step"].collectives) == ([0, 1], [0, 2])


def test_counts_of_a_step_are_summed_over_the_compiles_that_broke(file):
    tables = rank(file, 0, ("0", "0"), why=("x == 1",))
    tables.marks += [Mark(0, f"0/{i}", file, 4, "step", "break", name="print", text="no") for i in range(2)]
    for c, runs in zip(tables.compiles, (4, 5), strict=True):
        c.broke, c.runs = True, runs
    tables.profiled = {0: 2}
    (section,) = annotate(tables).listing.sections
    (note,) = (note for row in section.rows for note in row.notes if note.kind == "break")
    assert note.runs == "4.5× a step" and tables.counts[0].breaks == 4.5
    assert [cell.runs for row in section.rows for cell in row.cells if cell.runs is not None] == [4.5]


def test_a_recompile_names_every_guard_that_failed_and_a_refused_one_is_none(file):
    """Newer codes may fail for another reason than the one before: torch gives the newest code's first."""
    tables = rank(file, 0, ("0", "0"), why=("flag == 1", "flag == 2"))
    *_, last = tables.marks
    last.hints = ("rate == 0.5  # y = rate * x  # model.py:3 in step", "flag == 1")
    tables.compiles.append(
        Compile(0, "0/3", file, 1, "step", outcome="error", reasons=("n == 1",), why="n == 1")
    )
    tables.marks.append(Mark(0, "0/3", file, 1, "step", "recompile", name="n == 1"))
    tables.marks.append(Mark(0, "0/3", file, 1, "step", "error", name="RuntimeError: no"))
    (section,) = annotate(tables).listing.sections
    again, failed = sorted(section.rows[0].notes, key=lambda note: note.kind != "recompile")
    assert again.words == "2 times: `flag` changes (1 -> 2); `rate` changes (it was 0.5) (line 3)"
    assert (section.recompiles, tables.counts[0].recompiles) == ([2], 2)
    assert any("`n` changes" in hint for hint in failed.hints)


class Norm(torch.nn.Module):
    def forward(self, x):
        return F.rms_norm(x, (4,))  # Python in torch, whose own line torch gives


class Nested(torch.nn.Module):
    """Calls a `forward` in a `forward`: torch 2.13 to 2.15 leave the caller's line out of their report."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner = Norm(), Inner()

    def forward(self, x):
        x = self.norm(x) + 1
        y = self.inner(x).view(-1)  # ends before its operators
        z = self.inner(x.sin()) * 2  # ends between them
        print(end=str(z.sum().item())[:0])  # ends after them
        return self.inner(z + y.sum())


class Inner(torch.nn.Module):
    @torch.compiler.disable
    def forward(self, x):
        return x


def test_where_a_line_is_cut_and_an_operator_that_torch_wrote_in_python():
    from oddrank.record import record

    torch._dynamo.reset()
    step = torch.compile(Nested(), backend="eager")
    with record() as rec:
        step(torch.ones(2, 4))
        with rec.forward():
            step(torch.ones(2, 4))
    sections = {section.name: section for section in annotate(rec).listing.sections}
    (norm,) = (row.cells[0] for row in sections["Norm.forward"].rows if "rms_norm" in row.text)
    assert norm.inlined and not norm.between and norm.block == "A"
    rows = {row.text.split("#")[0].strip(): row.cells[0] for row in sections["Nested.forward"].rows}
    cuts = {text: (c.before, c.cut, c.block) for text, c in rows.items() if c.ends}
    assert cuts == {
        "y = self.inner(x).view(-1)": ("", "above", "B"),
        "z = self.inner(x.sin()) * 2": ("B", "middle", "C"),
        "print(end=str(z.sum().item())[:0])": ("", "below", "C"),
        "return self.inner(z + y.sum())": ("", "below", "D"),
    }


def test_a_trace_says_that_it_does_not_know_of_collectives_in_eager(file):
    """One rank has the call in its graph, and the other one runs the function in eager."""
    graph, other = rank(file, 0, ("0", "0")), Tables()
    other.compiles.append(Compile(1, "0/0", file, 1, "step", outcome="gave-up"))
    other.marks.append(Mark(1, "0/0", file, 1, "step", "def", name="no"))
    (section,) = annotate(merge([graph, other])).listing.sections
    said = {note.who: note.words for row in section.rows for note in row.notes if note.kind == "collective"}
    assert said["rank 1"].startswith("in eager, if at all")


@pytest.mark.kernel
@pytest.mark.slow
def test_cells_of_a_notebook_are_annotated_in_the_kernel_and_from_its_trace(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    from oddrank.record import read

    cells = (
        "import torch\nfrom oddrank.record import record\nfrom oddrank.source import annotate\n\n"
        "@torch.compile(backend='eager')\ndef first(x):\n    y = x.sin()\n    print(end='')\n    return y.cos()\n",
        "with record() as rec, rec.forward():\n    first(torch.ones(3))\nprint(annotate(rec))\nannotate(rec)",
    )
    monkeypatch.setenv("TORCH_TRACE", str(tmp_path / "traces"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    printed, shown = notebook.cells[1].outputs
    assert "first  In [?]:5" in printed["text"] and "┃A×1     y = x.sin()" in printed["text"]
    assert "1× a step" in printed["text"] and "In [?]" in shown["data"]["text/html"]
    file = Path(tmp_path, "saved.ipynb")
    nbformat.write(notebook, file)
    quoted, whole = (
        annotate(read(tmp_path / "traces", notebooks=more), notebooks=more) for more in ([], [file])
    )
    rows = [[(row.number, row.text) for row in one.listing.sections[0].rows] for one in (quoted, whole)]
    assert rows[0] == [(7, "y = x.sin()"), (8, "print(end='')"), (9, "return y.cos()")]
    assert rows[1][0] == (5, "@torch.compile(backend='eager')") and len(rows[1]) == 5


def test_a_hook_of_a_backward_and_a_trace_that_was_cut_off(tmp_path):
    """A hook is traced with the forward; half a trace has what came before, and says that a compile did not end."""
    from oddrank.record import read

    program = tmp_path / "hooked.py"
    program.write_text(
        "import torch\n\ndef step(x):\n    y = x * 2\n    y.register_hook(lambda g: g * 3)\n"
        "    return y.sin().sum()\n\n"
        "f = torch.compile(step, backend='aot_eager')\nx = torch.ones(3, requires_grad=True)\nf(x).backward()\n"
        "assert torch.allclose(x.grad, 6 * torch.cos(2 * torch.ones(3)))\n"
    )
    traces = tmp_path / "traces"
    done = subprocess.run(
        [sys.executable, str(program)], env={**os.environ, "TORCH_TRACE": str(traces)}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    (section,) = (s for s in annotate(read(traces)).listing.sections if s.name == "step")
    held = {row.text.strip() for row in section.rows if row.cells[0].graphs}
    assert {"y = x * 2", "return y.sin().sum()"} <= held and not any(section.breaks)
    (log,) = traces.glob("*.log")
    text = log.read_bytes()
    cut = text.index(b"dynamo_output_graph") if b"dynamo_output_graph" in text else len(text) // 2
    log.write_bytes(text[: cut + 40])
    (section,) = (s for s in annotate(read(traces)).listing.sections if s.name == "step")
    assert "unfinished" in {note.kind for row in section.rows for note in row.notes}


def test_a_collective_of_the_lowered_graph_alone_stands_at_its_line_and_a_scripts_line_has_its_text(file):
    pd = pytest.importorskip("pandas")
    from oddrank.look import program_source

    script = f"{TEXT}\n\nstep(x)\nloss.backward()\n"
    tables = rank(file, 0, ("0", "0"))
    calls = (("all_reduce", 3, "step", "0/0"), ("all_gather_into_tensor", 2, "step", "0/0"))
    calls += (("reduce_scatter_tensor", 9, "<module>", ""),)
    for name, line, func, compile in calls:
        tables.collectives.append(
            Collective(0, compile, name, "0: 0", "4", "float32", file, line, func, compiled=True)
        )
    kept = pd.DataFrame([(file, program_source.WHOLE, script)], columns=["file", "line", "text"])
    rows = {
        row.number: (row.text.strip(), [note.words for note in row.notes if note.kind == "collective"])
        for section in program_source.annotated(tables, kept).listing.sections
        for row in section.rows
    }
    lowered, backward = "in the lowered graph alone", "in a backward"
    assert rows[2] == ("y = x.sin()", [f"all_gather_into_tensor · f32[4] · group 0: 0 · {lowered}"])
    assert len(rows[3][1]) == 1 and lowered not in rows[3][1][0]  # it stands in Dynamo's graph
    assert rows[9] == ("loss.backward()", [f"reduce_scatter_tensor · f32[4] · group 0: 0 · {backward}"])
