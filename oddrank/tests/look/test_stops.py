"""`oddrank look` on scripts that end in a compile: a rank is killed in one, or one fails before any recorded step."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from oddrank.live.failure import Outcome
from oddrank.look import breaks, compile_start, endings, journal
from oddrank.look.program import Program
from oddrank.look.steps import Options
from oddrank.look.torchrun import OUTPUT, Request
from oddrank.look.watch import Limits
from oddrank.record import Compile, install
from oddrank.record.compiles import Try

SCRIPT = Path(__file__).parent / "scripts" / "late_size.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("end", [pytest.param("killed", marks=pytest.mark.guard), "late"])
def test_a_rank_that_is_ended_in_a_compile_has_said_so(tmp_path: Path, end: str) -> None:
    """Killed in it, under `-n`; or ended by torchrun as the other rank fails."""
    launcher = [] if end == "killed" else TORCHRUN
    command = [
        sys.executable,
        *launcher,
        "-m",
        "oddrank",
        "look",
        "--out",
        "page",
        str(SCRIPT),
        end,
        "compiling",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=900)
    page = html.unescape(
        re.sub("<[^>]+>", " ", (tmp_path / "page" / "index.html").read_text(encoding="utf-8"))
    )
    failure = (tmp_path / "page" / "failure.txt").read_text()
    sentence = "rank 1 was compiling Net.forward again: dimension 0 of `x` changes (16 -> 24) (late_size.py:"
    assert ran.returncode == (1 if launcher else 3), ran.stderr
    assert all(sentence in text for text in (ran.stderr, page, failure))
    assert "ranks differ: recompiles: 0 on rank 0, 1 on rank 1" in ran.stdout
    if end == "killed":
        first, _, rest = failure.splitlines()[:3]
        assert first.startswith("rank 1 failed after") and rest.startswith(
            "rank 1 died: killed by SIGKILL"
        ), failure
        assert re.search(r"rank 0 (was waiting in all_reduce here|raised RuntimeError)", failure)
    else:
        assert (
            "rank 1 was compiling here:" in failure and "raised RuntimeError: rank 1 did not come" in failure
        )


@pytest.mark.parametrize(
    ("last", "said", "hinted"),
    [
        ("_ops.py", "48 vs 32. Is there a distributed collective mismatch in your code?", True),
        ("_ops.py", "the operator has no such kernel", False),
        ("distributed/_functional_collectives.py", "", True),
        ("_ops.py", "", False),  # it may have been any operator
    ],
)
def test_a_rank_that_gloo_ends_in_an_operator_has_its_reason_and_the_advice(tmp_path, last, said, hinted):
    """Functional collectives are operators, and stand in `torch/_ops.py` as all of them do."""
    stack = [
        ("/home/ada/lib/python3.11/site-packages/torch/" + last, 9, "call"),
        ("/home/ada/train.py", 7, "main"),
    ]
    frames = "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in stack)
    endings.crash_file(tmp_path, 0).write_text(f"Fatal Python error: Aborted\n\nThread 0x1:\n{frames}")
    printed = tmp_path / OUTPUT / "run" / "attempt_0" / "0" / "stderr.log"
    printed.parent.mkdir(parents=True)
    thrown = (
        f"terminate called after throwing an instance of 'E'\n  what():  [enforce fail at a.cc:4] {said}\n"
    )
    printed.write_text(f"epoch 0\n{thrown if said else ''}")
    peer = Outcome(1, "error", "RuntimeError", "Connection reset by peer")
    request = Request(Program("train.py"), Options(), Limits())
    told = endings.ending([endings.gone(tmp_path, 0, -6), peer], None, request, 1.0).said
    assert f"rank 0 died: killed by SIGABRT{f' ({said})' if said else ''}, here:" in told
    assert ("--verify" in told) == hinted


def made(outcome: str = "unfinished", failure: tuple[str, str, str, int] = ("", "", "", 0), **row) -> Try:
    """A compile of `step` for a failed guard, as it is read from a journal."""
    again = Compile(
        0, "1/1", "train.py", 7, "step", outcome=outcome, reasons=("x == 3",), why="x == 3", **row
    )
    said = {"row": again, "begun": True, "finished": outcome != "unfinished", "failure": failure}
    return Try("1/1", 0, **said, has_code=outcome == "graph")


def through_a_file(compile_: Try) -> Try:
    return compile_start.of_facts(json.loads(json.dumps(compile_start.facts(compile_))))


def test_the_line_of_a_break_is_kept_of_a_deep_stack(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("\n" * 6 + "def step(x):\n    return x.item()\n")
    outer = "".join(
        f'  File "/home/ada/launch_{i}.py", line {i}, in start\n    start()\n' for i in range(100)
    )
    report = f"Graph break: Data dependent operator\n\nUser code traceback:\n{outer}"
    report += f'  File "{script}", line 8, in step\n    return x.item()\n'
    broke = made("graph", broke=True)
    broke.row.file, broke.break_text = str(script), report
    kept = through_a_file(broke)
    assert len(kept.break_text) < len(report) / 2
    (why,) = breaks.breaks_of(compile_start.tables([kept], 0))
    assert why.place == "train.py:8 (step)" and why.reason == "Graph break: Data dependent operator"


def test_a_journal_is_read_without_its_torn_last_line(tmp_path: Path) -> None:
    listeners = install().compiles.listeners
    before = list(listeners)
    try:
        journal.keep(tmp_path, 1)
        listeners[-1](made())
    finally:
        listeners[:] = before
    path = tmp_path / "compiles-1.jsonl"
    open_ = journal.read(tmp_path)
    assert journal.ended(open_, "") == [
        "rank 1 was compiling step again: `x` changes (it was 3) (train.py:7)"
    ]
    over = json.dumps(compile_start.facts(made("graph", operators=2)))
    for torn in (
        over[:-9],
        "[1]",
        '{"row": 1}',
        "\x00",
        over.replace('["x == 3"]', "4"),
        over.replace('"line": 7', '"line": "7"'),
        over.replace('"chain": []', '"chain": [["train.py"]]'),
    ):
        path.write_text(f"{json.dumps(compile_start.facts(made()))}\n{torn}\n")
        assert journal.read(tmp_path) == open_
    path.write_text(over)
    assert journal.ended(journal.read(tmp_path), "") == []
    (again,) = breaks.again_of(compile_start.tables(journal.read(tmp_path)[1], 1))
    assert (again.rank, again.reason, again.place) == (1, "x == 3", "train.py:7 (step)")


def test_a_failed_compile_is_named_only_where_the_run_failed_by_its_error() -> None:
    failed = made("error", ("BackendCompilerFailed", "no kernel", "train.py", 9))
    said = "rank 0 failed while compiling step again: `x` changes (it was 3) (train.py:7), at train.py:9"
    assert journal.ended({0: [failed]}, "rank 0 raised BackendCompilerFailed: no kernel") == [said]
    assert journal.ended({0: [failed]}, "rank 0 raised KeyError: 'x'") == []  # the error was suppressed
    assert through_a_file(failed) == failed
