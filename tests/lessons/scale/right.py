"""Right answers to the exercises of lesson 16 by other ways than the solutions'."""

from __future__ import annotations

import fcntl
import os

import torch
import torch.distributed as dist
from torch._inductor.compile_fx import compile_fx


def larger_sizes():
    return {"A": [341, 945], "B": [1000, 63], "C": [639, 15], "sizes": [1024, 4096]}


def a_lock_on_the_folder(function, x):
    """Whoever comes first compiles; it needs no group, and works for any number of graphs."""

    def backend(graph, inputs):
        with open(os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return compile_fx(graph, inputs)

    return torch.compile(function, backend=backend)(x)


def the_last_rank_first(function, x):
    last = dist.get_world_size() - 1
    box = [None]

    def backend(graph, inputs):
        if dist.get_rank() != last:
            dist.broadcast_object_list(box, src=last)
        compiled = compile_fx(graph, inputs)
        if dist.get_rank() == last:
            dist.broadcast_object_list(["compiled"], src=last)
        return compiled

    return torch.compile(function, backend=backend)(x)


RIGHT = {"scale.places": [larger_sizes], "scale.one_compiles": [a_lock_on_the_folder, the_last_rank_first]}
