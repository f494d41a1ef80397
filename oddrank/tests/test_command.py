"""`oddrank tables`, as a user starts it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from oddrank.record import read

pytestmark = pytest.mark.slow


def oddrank(*arguments: object, **more) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oddrank", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **more)


def test_the_terminal_shows_what_read_gives(job):
    profiles = ["--profile", job / "step_*.json"]
    shown = oddrank("tables", job / "traces", *profiles)
    assert shown.returncode == 0 and not shown.stderr
    found = read(job / "traces", sorted(job.glob("step_*.json")))
    lines = [line.split() for line in shown.stdout.splitlines()]
    at = {
        name: next(i for i, line in enumerate(lines) if line[:1] == [name])
        for name in ("compiles", "marks", "counts")
    }
    assert len(lines[at["compiles"] + 2 : at["marks"]]) == len(found.compiles)
    assert [line[:3] for line in lines if line[3:5] == ["Block.forward", "collective"]] == [
        [str(m.rank), m.compile, "program.py:18?"] for m in found.marks if m.kind == "collective"
    ]
    assert [line[-1] for line in lines[at["counts"] + 2 :]] == [str(row.breaks) for row in found.counts]
    # one table, one rank
    one = oddrank("tables", job / "traces", "--table", "compiles", "--rank", 1).stdout.splitlines()
    assert one[0] == f"compiles ({len(found.of_ranks([1]).compiles)})"
    assert {line.split()[0] for line in one[2:]} == {"1"}


def test_json_has_every_column_and_a_reader_may_stop_early(job):
    said = json.loads(oddrank("tables", job / "traces", "--json", "--operators").stdout)
    found = read(job / "traces")
    for name in ("compiles", "marks", "counts"):
        assert said[name] == json.loads(json.dumps(getattr(found, name).dicts()))
    assert said["torch"] == found.torch in ("", torch.__version__)  # torch 2.11 does not write it
    plain = json.loads(oddrank("tables", job / "traces", "--json").stdout)
    assert plain["marks"] == [m for m in said["marks"] if m["kind"] not in ("op", "kernel")]
    (log,) = (job / "traces").glob("*rank_0_*.log")
    assert {row["rank"] for row in json.loads(oddrank("tables", log, "--json").stdout)["compiles"]} == {0}
    code = f"{sys.executable} -m oddrank tables {job / 'traces'} --json --operators | head -1; echo ${{PIPESTATUS[0]}}"
    stopped = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert stopped.stdout == "{\n141\n" and not stopped.stderr
    ascii_only = oddrank("tables", job / "traces", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert ascii_only.returncode == 0 and not ascii_only.stderr


def wrong(job: Path, folder: Path) -> dict[str, tuple[list[object], str]]:
    """Input that is none: arguments, and what the sentence says of them."""
    (folder / "empty").mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "train.log").write_text("step 1: loss 2.5\n")
    (folder / "text.json").write_text("no profile")
    shutil.copytree(job / "traces", folder / "twice")
    (log,) = (job / "traces").glob("*rank_0_*.log")
    shutil.copy(log, folder / "twice" / log.name.replace("rank_0_", "rank_0_again_"))
    traces = job / "traces"
    return {
        "no folder": ([folder / "none"], "none does not exist"),
        "no log": ([folder / "empty"], "no file that ends in .log"),
        "no trace": ([folder / "other"], "no trace of a compile"),
        "one rank twice": ([folder / "twice"], "both of rank 0"),
        "no such rank": ([traces, "--rank", 5], "no rank 5: the trace has 0, 1"),
        "no such profile": ([traces, "--profile", folder / "none.json"], "none.json: No such file"),
        "no profile": (
            [traces, "--profile", folder / "text.json"],
            "text.json is no trace of torch.profiler",
        ),
        "no notebook": ([traces, "--notebook", folder / "text.json"], "text.json is no notebook"),
        "a folder": ([traces, "--notebook", folder], "Is a directory"),
    }


def test_wrong_input_is_a_sentence_and_exit_status_2(job, tmp_path):
    for what, (arguments, sentence) in wrong(job, tmp_path).items():
        done = oddrank("tables", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), what
        assert done.stderr.startswith("oddrank: ") and done.stderr.count("\n") == 1, done.stderr
        assert sentence in done.stderr
    for arguments in (
        [],
        ["tables"],
        ["tables", job / "traces", "--table", "nothing"],
        ["tables", job, "--rank", "x"],
    ):
        done = oddrank(*arguments)
        assert done.returncode == 2 and done.stderr.startswith("oddrank: ") and done.stderr.count("\n") == 1
