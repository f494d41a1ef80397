"""How a run ended, from what its ranks left, and whether all of them wait for each other: without ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from oddrank.live.failure import Outcome
from oddrank.live.introspect import Collective
from oddrank.look import endings
from oddrank.look.endings import ALONE, ENDED_BY_SIGTERM, NO_WORD, SILENT, ending
from oddrank.look.program import Program
from oddrank.look.steps import Options
from oddrank.look.torchrun import Request
from oddrank.look.watch import ENDED, INTERRUPT, STALL, Limits, Stop, Watch

CLOSED = "[/g/pair.cc:553] Connection closed by peer [127.0.0.1]:5783"
C10D = "torch/distributed/distributed_c10d.py:3 (all_reduce)"
IN_C10D = [("train.py:9 (step)", "dist.all_reduce(x)", False), (C10D, "", True)]
SIZE = "op.preamble.length <= op.nbytes: distributed collective mismatch"


def request(backend: str = "", verify: bool = False) -> Request:
    return Request(Program("train.py", backend=backend), Options(), Limits(stall=4), verify)


def left(rank: int, kind: str = "unfinished", message: str = NO_WORD, **more) -> Outcome:
    return Outcome(rank, kind, message=message, **more)


def lost(rank: int) -> Outcome:
    return left(rank, "error", CLOSED, type="RuntimeError")


def ended(*outcomes: Outcome, stop: Stop | None = None, asked: Request | None = None) -> str:
    return ending(list(outcomes), stop, asked or request(), 5.0).said


def test_a_rank_without_a_word_is_the_cause_only_where_others_lost_it() -> None:
    said = ended(lost(0), left(1))
    assert said.startswith("rank 1 failed after") and f"rank 1 died: {ALONE}" in said
    said = ended(left(0, "error", "the loss is nan", type="ValueError"), left(1))
    assert said.startswith("rank 0 failed after") and "died" not in said


def test_a_rank_that_had_ended_its_script_is_named_with_the_call_of_the_others() -> None:
    called = [Collective("0", n, "all_reduce", ((4,),), ("float32",), "train.py:9", True) for n in (1, 2)]
    said = ended(replace(lost(0), collectives=called), Outcome(1, "ok", collectives=called[:1]))
    assert "rank 1 had ended the script by then" in said and "at collective 2:" in said
    assert "had ended the script" not in ended(lost(0), lost(1))


def test_who_says_nothing_at_a_limit_stands_still_and_is_not_dead(tmp_path: Path) -> None:
    calls = [Collective("0", 3, "all_reduce", ((4, 2),), ("float32",), "train.py:9", False, ranks=(0, 1, 2))]
    mine = Outcome(0, "unfinished", frames=IN_C10D, waits="all_reduce", collectives=calls, sends=("send", 1))
    (tmp_path / "ended-0.json").write_text(endings.dump(mine, Stop(STALL, 9.0)))
    outcomes, stop = endings.read(tmp_path, 3, codes={1: -9})
    assert stop == Stop(STALL, 9.0) and outcomes[0] == mine
    assert [(one.kind, one.message) for one in outcomes[1:]] == [("unfinished", SILENT)] * 2
    found = ending(outcomes, stop, request(), 9.0)
    assert found.hung and found.said.startswith("stalled: the ranks have waited for each other for 4 s")
    # without a limit it is dead by what torchrun says
    (tmp_path / "ended-0.json").write_text(endings.dump(mine))
    outcomes, stop = endings.read(tmp_path, 3, codes={1: -9})
    assert [one.kind for one in outcomes] == ["unfinished", "dead", "unfinished"]
    assert "rank 1 died: killed by SIGKILL" in ended(*outcomes)


@pytest.mark.parametrize(
    ("asked", "aborted", "hinted"),
    [
        (request(), {"frames": IN_C10D, "code": -6}, True),
        (request("gloo"), {"frames": IN_C10D}, True),
        (request(), {"frames": IN_C10D[:1], "code": -6}, False),  # it aborted elsewhere
        (request(), {"frames": IN_C10D, "code": -9}, False),
        (request("nccl"), {"frames": IN_C10D, "code": -6}, False),
        (request(verify=True), {"frames": IN_C10D, "code": -6}, False),
    ],
)
def test_verify_is_named_where_gloo_ended_a_rank_in_a_collective(asked, aborted, hinted) -> None:
    said = ended(lost(0), left(1, "dead", "", **aborted), asked=asked)
    assert ("--verify, which compares each collective" in said) == hinted
    said = ended(left(0, "error", SIZE, type="RuntimeError"), lost(1), asked=asked)
    assert ("--verify" in said) == (asked in (request(), request("gloo")))


def test_where_both_ranks_still_know_their_calls_the_sizes_are_named() -> None:
    def raised(rank: int, size: int, more: int = 0) -> Outcome:
        sizes = [8, size, *[8] * more]
        calls = [
            Collective("0", number, "all_gather", ((each,),), ("float32",), "train.py:9", True)
            for number, each in enumerate(sizes, 1)
        ]
        return replace(left(rank, "error", SIZE, type="RuntimeError"), collectives=calls)

    said = ended(raised(0, 8, 1), raised(1, 5))
    assert (
        "at collective 2:\n    rank 0  all_gather (8,) float32" in said and "rank 1  all_gather (5,)" in said
    )
    assert "--verify" not in said
    said = ended(raised(0, 8, 1), raised(1, 8))  # that one rank went on is no difference in sizes
    assert "or in one with other sizes. Run it with --verify" in said and "never called it" not in said


def test_a_signal_and_an_interrupt_are_no_success_and_no_failure_of_a_rank() -> None:
    here = [left(rank, message="", frames=IN_C10D[:1]) for rank in (0, 1)]
    assert ended(*here, stop=Stop(ENDED)).startswith(f"{ENDED_BY_SIGTERM}\nrank 0 (and rank 1) was here:")
    assert ended(*here, stop=Stop(INTERRUPT)).startswith(f"{endings.STOPPED}\nrank 0")
    assert ended(Outcome(0, "ok"), Outcome(1, "ok")) == ""
    with pytest.raises(ValueError, match="--step nowhere"):
        ended(left(0, "error", "--step nowhere: train.py defines no such function"), left(1))


@pytest.mark.parametrize(
    ("looks", "idle", "wait"),
    [
        ([["5 4", "5 4"]], (), True),
        ([["5 4", "5 3"]], (), False),
        (
            [[f"{turn} 9", f"{turn} 0"] for turn in range(9)],
            (1,),
            False,
        ),  # rank 1 goes on, between two sleeps
        ([[f"{turn} 9", "3 0"] for turn in range(9)], (), False),  # its Python stands still, and it computes
        ([[f"{turn} 9", "3 0"] for turn in range(9)], (1,), True),
        ([["5 9", "over"]], (), True),
        ([["over", "over"]], (), False),
        ([[]], (), False),  # one has not begun
    ],
)
def test_all_wait_where_each_has_stood_still_as_long_as_the_limit(looks, idle, wait) -> None:
    watch = Watch.__new__(Watch)
    watch._launch, watch._limits, watch._heard, watch._every = SimpleNamespace(world_size=2), Limits(stall=4), {}, 1.0  # type: ignore[assignment]  # fmt: skip
    watch._peers = SimpleNamespace(idle=lambda rank: rank in idle)  # type: ignore[assignment]
    for said in looks:
        watch._post = SimpleNamespace(said=lambda names, said=said: said)  # type: ignore[assignment]
        found = watch._all_wait()
    assert found == wait
