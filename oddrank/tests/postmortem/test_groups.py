"""Several groups on one rank: records in the form that NCCL wrote on an H100, with more groups than those have."""

from __future__ import annotations

import pytest
from flight_records import TIMEOUT, dump, entry, failed, text_of, verdict_on
from oddrank.postmortem import differences

WORLD = {"0": range(3), "1": range(3), "2": range(3)}
MESH = {"1": (0, 2), "2": (1, 3), "3": (0, 1), "4": (2, 3)}  # data: 1 and 2, tensor: 3 and 4


def call(group, seq, line, done=True, **more):
    return entry(
        seq, group=group, desc="default_pg" if group == "0" else f"g{group}", line=line, done=done, **more
    )


def message(kind, one, other, number, done=True, line=50, group="0"):
    """A message as torch names it; the number counts those of this rank in this group."""
    arrow = "->" if kind == "send" else "<-"
    more = {"is_p2p": True, "p2p_seq_id": number, "collective_seq_id": 1, "op_id": number}
    desc = "default_pg" if group == "0" else f"g{group}"
    return entry(
        1, op=f"nccl:{kind} {one}{arrow}{other}", line=line, done=done, group=group, desc=desc, **more
    )


@pytest.mark.parametrize("blocks", [False, True])
def test_two_groups_in_another_order_on_one_rank(tmp_path, blocks):
    """Each group alone matches. Where calls return at once, all ranks have made both; else each has made its first."""
    for rank in range(3):
        first, second = ("2", "1") if rank == 1 else ("1", "2")
        calls = [call("0", 1, 10), call("1", 1, 20), call("2", 1, 21)]
        calls += [call(first, 2, 30, done=False)] + [call(second, 2, 31, done=False)] * (not blocks)
        dump(tmp_path, rank, calls, WORLD)
    found, held = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("circle", [1], 2)
    text = text_of(found)
    assert (
        "rank 1 in collective 2 of g2, for ranks 0, 2" in text
        and "ranks 0, 2 in collective 2 of g1, for rank 1" in text
    )
    assert "rank 1: all_reduce([1024] Float) number 2 of g2 at train.py:30" in text
    assert "ranks 0, 2: all_reduce([1024] Float) number 2 of g1 at train.py:30" in text
    late = "rank 1 made collective 2 of g1, too, at train.py:31 in step < train.py:1 in main, but after all_reduce"
    assert (late in text) is not blocks
    assert blocks or not differences.differences(held.dumps, range(3))


def test_one_rank_waits_in_its_first_call_and_the_other_has_made_both(tmp_path):
    """Rank 1 needs the result of its call before the next one; rank 0 does not wait for its own."""
    groups = {"1": range(2), "2": range(2)}
    dump(tmp_path, 0, [call("1", 1, 20, False), call("2", 1, 21, False)], groups)
    dump(tmp_path, 1, [call("2", 1, 21, False)], groups)
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("circle", [0, 1])
    assert "rank 0 in collective 1 of g1, for rank 1" in text_of(found)
    assert "rank 1 in collective 1 of g2, for rank 0" in text_of(found)


@pytest.mark.parametrize("blocks", [False, True, "gloo"])
def test_a_ring_of_four_groups(tmp_path, blocks):
    """Ranks 1 and 2 of a mesh of 2 x 2 call data before tensor: no group has a difference of its own.

    Of gloo's calls the last one counts, whatever its state is: that says nothing.
    """
    state = {"op": "gloo:all_reduce"} if blocks == "gloo" else {"done": False}
    axes = {rank: [name for name, members in MESH.items() if rank in members] for rank in range(4)}
    for rank, (data, tensor) in axes.items():
        first, second = (data, tensor) if rank in (1, 2) else (tensor, data)
        calls = [call(first, 1, 30, **state)] + [call(second, 1, 31, **state)] * (not blocks)
        dump(tmp_path, rank, calls, {name: MESH[name] for name in (data, tensor)})
        if blocks == "gloo":  # without an error, these are records of a job that runs
            (tmp_path / f"log_{rank}.txt").write_text(failed(rank, 30, TIMEOUT))
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("circle", [0, 1, 2, 3])
    for rank, group, peer in ((0, 3, 1), (1, 2, 3), (3, 4, 2), (2, 1, 0)):
        assert f"rank {rank} in collective 1 of g{group}, for rank {peer}" in text_of(found)


def test_who_came_another_way_into_a_circle(tmp_path):
    """Two pairs: rank 1 leaves out the second call of its own, and waits with the other pair for rank 0."""
    groups = {"0": range(4), "3": (0, 1), "4": (2, 3)}
    world = call("0", 1, 30, done=False)
    dump(tmp_path, 0, [call("3", 1, 20), call("3", 2, 21, done=False)], groups)
    dump(tmp_path, 1, [call("3", 1, 20), world], groups)
    for rank in (2, 3):
        dump(tmp_path, rank, [call("4", 1, 20), call("4", 2, 21), world], groups)
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("circle", [1])
    text = "before collective 1 of default_pg, ranks 2, 3 called all_reduce at train.py:21"
    assert text in text_of(found) and "and rank 1 called all_reduce at train.py:20" in text_of(found)


def test_calls_under_way_in_one_order_are_no_circle(tmp_path):
    """A record of a job that runs: rank 0 has two calls open, on rank 1 the first of them has ended already."""
    groups = {"1": range(2), "2": range(2)}
    dump(tmp_path, 0, [call("1", 1, 20, False), call("2", 1, 21, False)], groups)
    dump(tmp_path, 1, [call("1", 1, 20), call("2", 1, 21, False)], groups)
    assert verdict_on(tmp_path)[0].kind != "circle"
    dump(tmp_path, 1, [call("1", 1, 20, False), call("2", 1, 21, False)], groups)
    assert verdict_on(tmp_path)[0].kind != "circle"
    # gloo marks late what has ended: calls in another order, which all ranks have made, are no circle
    for rank, order in enumerate(("12", "21")):
        dump(tmp_path, rank, [call(one, 1, 20, False, op="gloo:all_reduce") for one in order], groups)
    assert verdict_on(tmp_path)[0].kind != "circle"


def test_each_group_counts_its_own_calls(tmp_path):
    """Numbers of groups and of messages run apart: rank 2 leaves out its third call of one of two groups."""
    groups = {"0": range(4), "1": (0, 2), "7": (0, 1, 2, 3)}
    for rank in range(4):
        calls = [call("0", 1, 10)]
        for n in range(1, 5):
            calls += [call("7", n, 20)]
            if rank in (0, 2) and not (rank == 2 and n > 2):
                calls += [call("1", n, 30, done=n < 3)]
        calls += [message("send", 1, 3, 1)] if rank == 1 else [message("recv", 3, 1, 1)] if rank == 3 else []
        dump(tmp_path, rank, calls, {name: members for name, members in groups.items() if rank in members})
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("difference", [2], 3)
    assert "rank 2 has not made collective 3 of g1" in found.head.text and "send" not in text_of(found)


def test_a_message_that_nobody_sends(tmp_path):
    """A pipeline: rank 1 waits for its second message of rank 0 in a group in which the numbers of ranks are others."""
    groups = {"0": range(4), "5": (2, 3)}
    dump(tmp_path, 2, [call("0", 1, 10), message("send", 0, 1, 1, group="5")], groups)
    recv = [message("recv", 1, 0, n, done=n < 2, line=60, group="5") for n in (1, 2)]
    dump(tmp_path, 3, [call("0", 1, 10), *recv], groups)
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("difference", [2], 2)
    assert "rank 2 has not made message 2 of g5 from rank 2 to rank 3, recv 1<-0" in found.head.text
    assert "rank 3: recv 1<-0" in text_of(found) and "train.py:60" in text_of(found)


def test_two_ranks_that_both_receive_first(tmp_path):
    groups = {"0": range(2)}
    for rank in range(2):
        dump(tmp_path, rank, [message("recv", rank, 1 - rank, 1, done=False)], groups)
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("circle", [0, 1])
    assert "rank 0 in message 1 of default_pg from rank 1 to rank 0, for rank 1" in text_of(found)


def test_a_message_and_a_collective_that_wait_for_each_other(tmp_path):
    """Rank 0 waits for the result of rank 1, which waits for rank 0 in a sum over the wrong group."""
    groups = {"0": range(3), "1": (1, 2)}
    dump(tmp_path, 0, [call("0", 1, 10), message("recv", 0, 1, 1, done=False, line=70)], {"0": range(3)})
    for rank in (1, 2):
        dump(tmp_path, rank, [call("0", 1, 10), call("0", 2, 40, done=False)], groups)
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("circle", [0, 1])
    assert "rank 1 in collective 2 of default_pg, for rank 0" in text_of(found)
    assert "ranks 1, 2: all_reduce([1024] Float) number 2 of default_pg at train.py:40" in text_of(found)
    assert "rank 0 in message 1 of default_pg from rank 1 to rank 0, for rank 1" in text_of(found)


def test_a_job_in_which_all_messages_have_ended(tmp_path):
    groups = {"0": range(2)}
    dump(tmp_path, 0, [message("send", 0, 1, n) for n in (1, 2)], groups)
    dump(tmp_path, 1, [message("recv", 1, 0, n) for n in (1, 2)], groups)
    assert verdict_on(tmp_path)[0].kind == "nothing wrong"
    # a small message is sent before its receiver has called
    dump(tmp_path, 0, [message("send", 0, 1, n) for n in (1, 2, 3)], groups)
    ended = "[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -15 (pid: 7) (SIGTERM)\n"  # by the launcher
    (tmp_path / "launcher.log").write_text(ended)
    assert verdict_on(tmp_path)[0].kind == "nothing wrong"


def batch(rank, number, done):
    """A rank's share of a ring of 2: torch marks the batch as ended, and never its messages."""
    held = [message(kind, rank, 1 - rank, number, done=False) for kind in ("send", "recv")]
    last = message("send", 0, 1, number, done=done) | {"profiling_name": "nccl:coalesced", "input_sizes": []}
    return [*held, last | {"input_dtypes": [], "output_sizes": [], "output_dtypes": []}]


def test_batches_of_messages(tmp_path):
    groups = {"0": range(2)}
    for rank in range(2):
        calls = [*batch(rank, 1, True), *batch(rank, 2, True), call("0", 1, 80)]
        dump(tmp_path, rank, calls, groups)
    assert verdict_on(tmp_path)[0].kind == "nothing wrong"
    dump(tmp_path, 0, [*batch(0, 1, True), *batch(0, 2, False)], groups)
    dump(tmp_path, 1, batch(1, 1, True), groups)
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("difference", [1], 2)
    assert "rank 1 has not made message 2 of default_pg from rank" in found.head.text
