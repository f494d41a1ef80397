"""Ranks that send and receive in a circle: the error says who waits for whom, and what to do."""

from __future__ import annotations

import re

import pytest
from oddrank.live.messages import circle

from labkit.ranks import RankError


def exchange(turns: dict[int, tuple[str, int]], grouped: bool) -> None:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    group = dist.new_group(sorted(turns)) if grouped else None
    if rank not in turns:
        return
    kind, peer = turns[rank]
    tensor = torch.ones(1 << 24)  # more than a socket holds
    if kind == "send":
        dist.send(
            tensor, group=group, **({"group_dst": sorted(turns).index(peer)} if grouped else {"dst": peer})
        )
    else:
        dist.recv(
            tensor, group=group, **({"group_src": sorted(turns).index(peer)} if grouped else {"src": peer})
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turns", "grouped", "sentence"),
    [
        (
            {1: ("send", 2), 2: ("send", 1)},
            True,
            "rank 1 sends to rank 2, rank 2 sends to rank 1; none of them receives",
        ),
        (
            {0: ("recv", 1), 1: ("recv", 2), 2: ("recv", 0)},
            False,
            "rank 0 receives from rank 1, rank 1 receives from rank 2, rank 2 receives from rank 0; none of them sends",
        ),
    ],
    ids=["two of a group send", "three receive"],
)
def test_who_waits_for_whom(three, turns, grouped, sentence):
    with pytest.raises(RankError) as caught:
        three.run(exchange, turns, grouped, stall=4)
    text = str(caught.value)
    assert sentence in text and not re.search(r"rank [12].* has called no collective", text)
    (kind, peer), word = turns[1], {"send": "to", "recv": "from"}[turns[1][0]]
    assert f"rank 1 was waiting in {kind} {word} rank {peer} here:" in text


def begin_all(turns: dict[int, list[tuple[str, int]]], batch: bool) -> None:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    group = dist.new_group([1, 2])
    numbers = {1: 0, 2: 1}
    keep = []
    for kind, peer in turns.get(rank, []):
        begin = dist.isend if kind == "send" else dist.irecv
        tensor = torch.ones(8)
        if batch:
            keep += dist.batch_isend_irecv([dist.P2POp(begin, tensor, group=group, group_peer=numbers[peer])])
        else:
            keep += [
                begin(tensor, group=group, **{"group_dst" if kind == "send" else "group_src": numbers[peer]})
            ]
    for work in keep:
        work.wait()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
def test_handles_that_are_waited_for_name_the_peer(three, batch):
    turns = {1: [("send", 2), ("recv", 2)], 2: [("send", 1), ("recv", 1)]}
    three.run(begin_all, turns, batch, stall=20)
    turns[2].pop(0)
    turns[1].pop(0)
    with pytest.raises(RankError) as caught:
        three.run(begin_all, turns, batch, stall=4)
    text = str(caught.value)
    assert "rank 1 receives from rank 2, rank 2 receives from rank 1; none of them sends" in text
    assert "rank 1 was waiting in recv from rank 2 here:" in text and "work.wait()" in text


def test_a_chain_that_ends_is_no_circle():
    assert circle({0: ("recv", 1), 1: ("recv", 2)}) == ""  # rank 2 does something else: its stack says it
    assert "each waits for the next one" in circle({0: ("send", 1), 1: ("recv", 2), 2: ("send", 0)})
    assert "tags or groups" in circle({0: ("send", 1), 1: ("recv", 0)})


def by_name() -> list[float]:
    import torch
    import torch.distributed as dist

    group, tensor = dist.group.WORLD, torch.full((2,), float(dist.get_rank()))
    if dist.get_rank() == 0:
        group.send(tensors=[tensor], dstRank=1, tag=0).wait()
    elif dist.get_rank() == 1:
        group.recv(tensors=[tensor], srcRank=0, tag=0).wait()
    return tensor.tolist()


def test_a_message_of_the_group_itself_may_name_its_arguments(three):
    assert three.run(by_name)[1] == [0.0, 0.0]
