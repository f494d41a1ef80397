"""The command line: the same counts as in the lesson, and one sentence for what cannot be done."""

from __future__ import annotations

import json

import pytest

from labkit import cli
from labkit.report import Report


def test_list_and_doctor(capsys):
    assert cli.main(["list"]) == 0
    assert "cliff" in capsys.readouterr().out
    assert cli.main(["doctor"]) == 0
    assert "Ranks(2)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["run", "nothing"],
            "unknown experiment 'nothing': there is "
            "cliff, collectives, eager_trap, streams, microbatch, offload, divergence, guards, depth, "
            "drift, odd_shape, scale, mesh_or_world, wrong_group, cold, survival, placements, routes, "
            "ddp, fsdp, comm_passes, break-it",
        ),
        (["run", "collectives", "--blocks", "4"], "collectives has no --blocks: it takes --only, --compiler"),
        (["run", "collectives", "--only", "send"], "no collective begins with 'send'"),
        (
            ["run", "cliff", "--ranks", "0"],
            "argument --ranks: must be a whole number from 1 to 65536, got '0'",
        ),
        (
            ["run", "cliff", "--blocks", "0"],
            "argument --blocks: must be a whole number from 1 to 1000, got '0'",
        ),
        (["run", "cliff", "--backend", "mpi"], "argument --backend: invalid choice: 'mpi'"),
        (
            ["run", "cliff", "--variants", "AX"],
            "argument --variants: takes letters of the variants (default ABCDE), got 'AX'",
        ),
        (
            ["run", "cliff", "--ranks", "3", "--blocks", "1"],
            "heads=2 cannot be split evenly over world_size=3",
        ),
        (["run", "cliff", "--save", "/proc/nowhere"], "cannot write in /proc/nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments, sentence, capsys):
    assert cli.main(arguments) == 2
    found = capsys.readouterr()
    assert found.err.startswith("labkit: ") and sentence in found.err
    assert "Traceback" not in found.err


@pytest.mark.slow
def test_run_collectives_takes_its_own_options(capsys):
    assert cli.main(["run", "collectives", "--only", "barrier", "--compiler", "eager"]) == 0
    out = capsys.readouterr().out
    assert "barrier" in out and "all_reduce" not in out and "[gloo · cpu]" in out


@pytest.mark.slow
def test_run_prints_json_and_saves_a_report_that_loads(tmp_path, capsys):
    save = ["--save", str(tmp_path), "--json"]
    assert cli.main(["run", "cliff", "--blocks", "1", "--rounds", "3", "--variants", "BC", *save]) == 0
    out = capsys.readouterr().out
    counts = json.loads(out)["tables"]["counts"]
    saved = Report.load(tmp_path / "cliff.json")
    assert counts["regions"] == list(saved.tables["counts"]["regions"])
    assert counts["collectives"] == [4, 4, 4, 4]
    assert saved.label.startswith("recorded on")
