"""Ranks as threads of this process: a contract without a process group, and so without collectives."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist

from course.shared.contract import ContractError, Exchange

_number = itertools.count()


def rehearse(world_size, body, timeout=10.0):
    """By rank what `body(exchange)` returned, or the exception that it raised."""
    store, name = dist.HashStore(), f"rehearsal-{next(_number)}"

    def play(rank):
        try:
            return body(Exchange(store, rank, world_size, name, timeout))
        except Exception as error:
            return error

    with ThreadPoolExecutor(world_size) as threads:
        return list(threads.map(play, range(world_size)))


def raised(found, kind=ContractError):
    """What every rank said: each raised this kind of error, with the same words."""
    assert [type(error) for error in found] == [kind] * len(found), found
    (said,) = {str(error) for error in found}
    return said
