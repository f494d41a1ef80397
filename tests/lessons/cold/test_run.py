"""Lesson 12 from top to bottom: what a second start finds, what survives a change, what each way builds."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "12_cold_and_warm"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]

RIGHT = "[0.0, 2.0, 4.0, 6.0]"


def test_a_start_is_right_where_each_rank_runs_its_own_code_which_one_folder_does_not_keep(run):
    starts = {}  # by caches and number of the start, of each rank: its result, what its caches said, its code
    shown = r"^(\S+) +(\w+) +start, rank \d: (\[.*?\]) *\n((?:    .*\n?)+)"
    for caches, number, y, lines in re.findall(shown, run.text("starts"), re.M):
        found = y, re.findall(r"AOTAutograd cache (hit|miss)", lines), re.findall(r"code (\w+)", lines)
        starts.setdefault((caches, number), []).append(found)
    own = [code for *_, code in starts["own-{rank}", "first"]]
    assert len(starts) == 5 and own[0] != own[1]
    assert len({*re.findall(r"AOTAutograd cache \w+ for key (\w+)", run.text("starts"))}) == 1
    for ranks in starts.values():
        right = [code for *_, code in ranks] == own
        assert [y == RIGHT for y, *_ in ranks] == [right, right]
    for caches, hits_are_right in (("shared", False), ("own-{rank}", True)):
        assert all(
            said == ["hit"] and (y == RIGHT) == hits_are_right for y, said, _ in starts[caches, "second"]
        )
    assert [said for _, said, _ in starts["own-{rank}", "first"]] == [["miss"]] * 2
    assert [said for _, said, _ in starts["late", "first"]] == [["miss"], ["hit"]]  # no restart is needed


def test_the_log_of_the_exercise_has_one_job_whose_result_changes(run):
    job = r"# job (\w), first start\n(.*?)#+ job \w, second start\n(.*?)(?=\n#|\Z)"
    sums = {
        name: [re.findall(r"\[rank(\d)\] result: sum (\S+)", start) for start in starts]
        for name, *starts in re.findall(job, run.text("caches-log"), re.S)
    }
    same = {name: first == second for name, (first, second) in sums.items()}
    assert same == {"A": False, "B": True, "C": True, "D": True, "E": True}
    assert all([rank for rank, _ in start] == ["0", "1"] for starts in sums.values() for start in starts)


def test_caches_miss_where_the_program_is_another_and_files_go_wrong_in_silence_or_are_refused(run):
    text = run.text("survive")
    changes = ("nothing", "shape", "weights", "code", "setting", "version string")
    said = {
        "second process": ("hit", "miss", "hit", "miss", "miss", "miss"),
        "cache artifacts": ("hit", "miss", "hit", "miss", "miss", "miss"),
        "aot_compile": ("no key", "refused", "no key", "wrong", "no key", "refused"),
        "AOTInductor": ("no key", "no key", "wrong", "wrong", "no key", "no key"),
    }
    for kind, outcomes in said.items():
        told = ", ".join(f"{change} {outcome}" for change, outcome in zip(changes, outcomes, strict=True))
        assert f"{kind}: {told}." in text
    assert (
        "Wrong in silence: AOTInductor after a change of weights or code; aot_compile after a change of code"
        in text
    )
    assert "aot_compile, shape: RuntimeError: GuardManager check failed" in text
    assert (
        "aot_compile, version string: RuntimeError: Compile package was created with a different PyTorch"
        in text
    )


def test_each_way_hits_and_builds_what_its_files_lack(run):
    ways = run.table("cold", "ways").set_index("way")
    assert {way: (row.builds, row.hit, row.miss) for way, row in ways.iterrows()} == {
        "cold": (1, 0, 2),
        "second process": (0, 2, 0),
        "cache artifacts": (1, 2, 0),
        "aot_compile": (1, 0, 0),
        "AOTInductor": (0, 0, 0),
    }, "the libraries that try the CPU's instructions are not the graph's"
    assert ways["trials"]["second process"] == 0 and (ways["error"] < 1e-4).all()
    latency = run.table("cold", "latency")
    assert latency.shape == (run.values["REQUESTS"], 2)


def test_the_phases_of_a_first_call_are_told_by_rank(run):
    cold, large, uneven = run.text("cold-run"), run.text("large-run"), run.text("uneven")
    for rank in (0, 1):
        (said,) = re.findall(rf"cold, rank {rank}: \S+ s: (.*?)(?:\. |\. ?\[|$)", cold)
        phases = (
            "find and load",
            "Dynamo",
            "AOTAutograd",
            "Inductor",
            "CPU instruction check",
            "build and load C++",
        )
        assert all(f"{phase} " in said for phase in phases), said
    whole, block = (int(found) for found in re.findall(r"(\d+) operators captured", large))
    assert whole - block >= (run.values["LAYERS"] - 1) * block > 0
    assert "rank 0: " in uneven and "rank 1: " in uneven and "run, or wait for a peer" in uneven


def test_the_warmup_is_alike_on_all_ranks_and_what_it_lacks_is_an_error(run):
    text = run.text("warmup-run")
    assert "(graphs, breaks) by rank: [(2, 0), (2, 0)]" in text
    assert re.findall(r"(\d) rows: (served|Detected recompile)", text) == [
        ("4", "served"),
        ("8", "served"),
        ("6", "Detected recompile"),
    ]
    for rank in (0, 1):
        assert f"rank {rank}: (graphs, breaks) differ by rank: [(2, 0), (2, 1)]" in text
        assert f"rank {rank}: Hard failure due to fail_on_recompile_limit_hit" in text
    one, mine, solution = run.text("attempts").split("--- ")[1:]
    assert "go on until a round" in one and "the ranks have to agree on the end" in mine
    assert "passed: " in solution and "not yet" not in solution


def test_the_script_suspects_the_warm_folder_alone(run):
    starts = re.findall(r"--- (.*)\n(?:rank .*\n)+(.*)\nexit status (\d)", run.text("main-run"))
    assert starts == [
        ("without caches", "without caches: kept; start once more for the noise", "0"),
        ("once more", "without caches: no difference", "0"),
        ("with an empty folder", "no hit: nothing was tested", "0"),
        ("with a warm folder", "SUSPECT CACHE", "1"),
    ]
