"""Plausible wrong answers to the exercises of lesson 01, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist


def ring(x, steps=2, cut=torch.Tensor.tensor_split):
    rank, size = dist.get_rank(), dist.get_world_size()
    pieces = list(cut(x.clone(), size))
    for step in range(steps * (size - 1)):
        send, receive = (rank - step) % size, (rank - step - 1) % size
        arriving = torch.empty_like(pieces[receive])
        exchange(pieces[send], arriving)
        if step < size - 1:
            pieces[receive] += arriving
        else:
            pieces[receive].copy_(arriving)
    return torch.cat(pieces)


def exchange(outgoing, arriving):
    rank, size = dist.get_rank(), dist.get_world_size()
    works = [dist.isend(outgoing, (rank + 1) % size), dist.irecv(arriving, (rank - 1) % size)]
    for work in works:
        work.wait()


def half_a_ring(x):
    return ring(x, steps=1)


def whole_tensors(x):
    total, passing = x.clone(), x.clone()
    for _ in range(dist.get_world_size() - 1):
        arriving = torch.empty_like(x)
        exchange(passing, arriving)
        total, passing = total + arriving, arriving
    return total


def through_rank_0(x):
    total, size = x.clone(), dist.get_world_size()
    if dist.get_rank():
        dist.send(x, 0)
        dist.recv(total, 0)
        return total
    for peer in range(1, size):
        arriving = torch.empty_like(x)
        dist.recv(arriving, peer)
        total += arriving
    for peer in range(1, size):
        dist.send(total, peer)
    return total


def the_collective(x):
    y = x.clone()
    dist.all_reduce(y)
    return y


def nobody_adds(x):
    arriving = torch.empty_like(x)
    exchange(x, arriving)
    return arriving


def in_its_argument(x):
    x.copy_(ring(x))
    return x


def in_small_pieces(x):
    return torch.cat([ring(half) for half in x.chunk(2)])


def equal_parts_only(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    pieces = list(x.clone().chunk(size))
    arriving = torch.empty_like(pieces[0])
    for step in range(2 * (size - 1)):
        send, receive = (rank - step) % size, (rank - step - 1) % size
        exchange(pieces[send], arriving)
        if step < size - 1:
            pieces[receive] += arriving
        else:
            pieces[receive].copy_(arriving)
    return torch.cat(pieces)


def three_parts_of_five(x):
    return ring(x, cut=torch.Tensor.chunk)


def straight_to_the_owner(x):
    """No ring: each part goes to its owner, who adds, and sends the sum to all. As many messages, and as many bytes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = list(x.clone().tensor_split(size))
    mine = parts[rank].clone()

    def swap(outgoing, far, arriving):
        sent = dist.isend(outgoing, (rank + far) % size)
        dist.recv(arriving, (rank - far) % size)
        sent.wait()

    for far in range(1, size):
        arriving = torch.empty_like(mine)
        swap(parts[(rank + far) % size], far, arriving)
        mine += arriving
    for far in range(1, size):
        swap(mine, far, parts[(rank - far) % size])
    parts[rank] = mine
    return torch.cat(parts)


def halves_with_two_partners(x):
    """Recursive halving, then doubling: as many bytes in 4 messages."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole, low, high, distance = x.clone(), 0, x.numel(), size // 2
    ranges = []
    while distance:
        peer, middle = rank ^ distance, (low + high) // 2
        keep, give = ((low, middle), (middle, high)) if rank < peer else ((middle, high), (low, middle))
        arriving = torch.empty(keep[1] - keep[0])
        sent = dist.isend(whole[give[0] : give[1]].clone(), peer)
        dist.recv(arriving, peer)
        sent.wait()
        whole[keep[0] : keep[1]] += arriving
        ranges.append((peer, keep, give))
        low, high = keep
        distance //= 2
    for peer, keep, give in reversed(ranges):
        arriving = torch.empty(give[1] - give[0])
        sent = dist.isend(whole[keep[0] : keep[1]].clone(), peer)
        dist.recv(arriving, peer)
        sent.wait()
        whole[give[0] : give[1]] = arriving
    return whole


def all_send_first(x):
    """Every rank waits until its neighbour receives."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = list(x.clone().tensor_split(size))
    for step in range(2 * (size - 1)):
        dist.send(parts[(rank - step) % size], (rank + 1) % size)
        arriving = torch.empty_like(parts[(rank - step - 1) % size])
        dist.recv(arriving, (rank - 1) % size)
        parts[(rank - step - 1) % size] += arriving
    return torch.cat(parts)


def no_result(x):
    ring(x)


def rank_of(env):
    return int(env["SLURM_PROCID"])


def rank_0_is_missing(env):
    return {"missing": 0, "twice": 1, "rank": rank_of(env)}


def whoever_came_last(env):
    return {"missing": 3, "twice": 2, "rank": rank_of(env)}


def as_it_was(env):
    return {"missing": 3, "twice": 1, "rank": int(env["SLURM_NODEID"]) + int(env["SLURM_LOCALID"])}


def two_a_node(env):
    return {"missing": 3, "twice": 1, "rank": 2 * int(env["SLURM_NODEID"]) + int(env["SLURM_LOCALID"])}


def a_string(env):
    return {"missing": 3, "twice": 1, "rank": env["SLURM_PROCID"]}


def on_the_last_node(env):
    """Rank 0 serves the store, and would run where MASTER_ADDR is not."""
    return {"missing": 3, "twice": 1, "rank": int(env["SLURM_NTASKS"]) - 1 - rank_of(env)}


def a_list(env):
    return {"missing": [3], "twice": 1, "rank": rank_of(env)}


def missing_as_a_word(env):
    return {"missing": "3", "twice": "1", "rank": rank_of(env)}


def another_variable(env):
    return {"missing": 3, "twice": 1, "rank": int(env["SLURM_RANK"])}


def without_the_fix(env):
    return {"missing": 3, "twice": 1}


RING = {
    half_a_ring: "a part on each rank: pass them on",
    whole_tensors: "cut the tensor into 4 parts",
    through_rank_0: "the slowest link sets the time",
    the_collective: "send and receive, and nothing else",
    nobody_adds: "follow one part around the ring",
    in_its_argument: "work in a copy",
    in_small_pieces: "with one message a step",
    equal_parts_only: "the parts differ in size",
    three_parts_of_five: "the parts differ in size",
    straight_to_the_owner: "to one neighbour only",
    halves_with_two_partners: "with one message a step",
    all_send_first: "the ranks wait for each other: where all ranks send first",
    no_result: "return the sum",
}
START = {
    rank_0_is_missing: "which rank's key is not in the list",
    whoever_came_last: "work out RANK for each of the four",
    as_it_was: "two processes get one rank",
    two_a_node: "the number of tasks on a node",
    a_string: "a whole number",
    on_the_last_node: "rank 0 has to run there",
    a_list: "return it as an int",
    missing_as_a_word: "return it as an int",
    another_variable: "SLURM_LOCALID",
    without_the_fix: "with the keys missing, twice and rank",
}


WRONG = {"groups.ring": RING, "groups.start": START}
