"""The program's source from TORCH_TRACE: what was being compiled, and all that was, from traces of any origin."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from oddrank.command import main
from oddrank.postmortem import annotation
from oddrank.postmortem.folder import gather

PROGRAM = """\
import torch

@torch.compile
def step(x):
    # first
    y = x.sin()
    z = y.cos()
    # what follows is far away
    # .
    # .
    # .
    # .
    return z  # last
"""
GRAPH = """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4]"):
        l_x_ = L_x_

         # File: {file}:6 in step, code: y = x.sin()
        y: "f32[4]" = l_x_.sin();  l_x_ = None
        return (y,)
"""


class Trace:
    """A trace as torch writes it, of one rank."""

    def __init__(self, folder: Path, rank: int, name: str = "") -> None:
        self.path = folder / f"dedicated_log_torch_trace_rank_{rank}_{name}.log"
        self.about = {"rank": rank, "attempt": 0}
        self.lines: list[str] = []
        self.files = 0

    def add(self, said: dict, text: str = "", frame: int = 0) -> None:
        """An entry, with the text below it."""
        head = said | {"frame_id": frame, "frame_compile_id": 0} | self.about
        head |= {"has_payload": f"{hash(text):x}"} if text else {}
        self.lines.append(f"V1128 03:04:14.173000 7 torch/_dynamo/utils.py:1] {json.dumps(head)}")
        self.lines += [f"\t{line}" for line in text.splitlines()]

    def begin(self, file: str, line: int = 3, name: str = "step", frame: int = 0) -> Trace:
        """A compile that begins."""
        self.files += 1
        self.add({"str": [file, self.files]})
        stack = [
            {"line": line, "name": name, "filename": self.files, "loc": "" if line > 3 else "@torch.compile"}
        ]
        self.add({"dynamo_start": {"stack": stack}}, frame=frame)
        return self

    def end(self, file: str) -> Trace:
        """Its graph, and its end."""
        self.add({"dynamo_output_graph": {"sizes": {}}}, GRAPH.format(file=file))
        told = {"co_name": "step", "co_filename": file, "co_firstlineno": 3}
        told |= {"has_guarded_code": True, "graph_op_count": 1, "entire_frame_compile_time_s": 1.5}
        self.add({"compilation_metrics": told})
        return self

    def write(self) -> Path:
        self.path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        return self.path


@pytest.fixture
def job(tmp_path) -> Path:
    (tmp_path / "job").mkdir()
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path / "job"


def postmortem(job: Path, capsys) -> tuple[str, str, str]:
    """What the command prints, and the page, up to the folded source and from there."""
    capsys.readouterr()
    assert main(["postmortem", str(job), "--out", str(job.parent / "out")]) in (0, 1)
    page = (job.parent / "out" / "index.html").read_text()
    first, _, rest = page.partition("<h2>The source, and what each rank compiled of it")
    return capsys.readouterr().out, re.sub("<[^>]+>", "", first), re.sub("<[^>]+>", "", rest)


def test_the_lines_around_what_a_rank_was_compiling_and_the_source_of_all_ranks(job, capsys):
    file = str(job.parent / "train.py")
    Trace(job, 0).begin(file).end(file).write()
    Trace(job, 1).begin(file).write()
    said, first, rest = postmortem(job, capsys)
    shown = said.partition("step  train.py:3\n")[2]
    assert re.search(
        r"4 ≠ .*def step\(x\):\n +… \[rank 1\] was being compiled when the trace ends\n", shown
    ), said
    assert re.search(r"6 ≠ ┃A +y = x\.sin\(\)\n", shown) and "# last" not in shown, said
    assert "y = x.sin()" in first and "was being compiled" in first and "# last" not in first
    assert "y = x.sin()" in rest and "# last" in rest, "the whole function, for every rank"
    Trace(job, 1).begin(file).end(file).write()
    said, first, rest = postmortem(job, capsys)
    assert "being compiled" not in said + first and "y = x.sin()" in rest and "≠" not in rest


def test_of_several_starts_the_newest_trace_of_a_rank_counts(job, capsys):
    file = str(job.parent / "train.py")
    Trace(job, 0, "b").begin(file).end(file).write()
    old = Trace(job, 0, "a").begin(file).write()
    os.utime(old, (1, 1))
    said, first, rest = postmortem(job, capsys)
    assert "being compiled" not in said + first
    assert f"{old.name} was not read: a newer trace is of the same rank" in rest


def test_a_trace_from_outside_is_shown_as_text_and_without_end_is_cut(job, capsys):
    secret = job.parent / "secret"
    secret.write_text("root:x:0\n" * 9)
    trace = Trace(job, 0).begin(str(secret), name="<script>alert(1)</script>")
    for n in range(1, annotation.MOST_FUNCTIONS):
        trace.begin(f"/a\x1b[2J/{'b' * 900}{n}.py", 2**31 - 1, f"\x1b]0;owned\x07{'f' * 900}", frame=n)
    trace.begin(str(job.parent / "train.py"), frame=annotation.MOST_FUNCTIONS)
    reason = "Graph Break Reason: skipped\n  Explanation: see /home/ada/net.py:3\nUser code traceback:\n"
    trace.add({"artifact": {"name": "dynamo_graph_break_reason"}}, reason, frame=annotation.MOST_FUNCTIONS)
    trace.add({"dynamo_start": {"stack": [{"line": [], "name": 3, "filename": {}}]}}, frame=9999)
    trace.write()
    said, first, rest = postmortem(job, capsys)
    page = (job.parent / "out" / "index.html").read_text()
    assert "<script" not in page and "root:x:0" not in page
    assert "see net.py:3" in page and "/home/ada" not in page
    assert "def step(x):" in said and "\x1b" not in said and "\x07" not in said
    assert re.search(r"\d more functions are not shown", rest) and "def step(x):" in first
    drawn = annotation.annotation(gather([job])).text.splitlines()
    assert len(drawn) <= annotation.MOST_LINES and max(map(len, drawn)) <= annotation.MOST_WIDE


def test_a_fault_of_the_picture_costs_no_verdict(job, capsys, monkeypatch):
    Trace(job, 0).begin(str(job.parent / "train.py")).write()

    def fails(*args, **kwargs):
        raise RecursionError("too deep")

    monkeypatch.setattr(annotation, "listing", fails)
    assert main(["postmortem", str(job), "--out", str(job.parent / "out")]) == 0
    said = capsys.readouterr()
    assert (
        "rank 0 is compiling" in said.out and "the source is not shown: RecursionError: too deep" in said.err
    )
