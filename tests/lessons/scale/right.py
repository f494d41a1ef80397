"""Right answers to the exercises of lesson 16 by other ways than the solutions'."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time

import numpy
import torch
import torch.distributed as dist
from torch._inductor.compile_fx import compile_fx


def of_numpy_and_torch():
    pairs = {"A": numpy.array([421, 945]), "B": tuple(torch.tensor([1000, 63])), "C": [numpy.int64(639), 15]}
    return pairs | {"D": (numpy.int32(1023), True + 0), "sizes": torch.Size([1008, 2048])}


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


def by_a_file(function, x):
    """The others look for a file, again and again."""

    def backend(graph, inputs):
        name = hashlib.sha256(graph.code.encode()).hexdigest()
        done = os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], name)
        while dist.get_rank() > 0 and not os.path.exists(done):
            time.sleep(0.1)
        compiled = compile_fx(graph, inputs)
        if dist.get_rank() == 0:
            open(done, "w").close()
        return compiled

    return torch.compile(function, backend=backend)(x)


RIGHT = {
    "scale.places": [of_numpy_and_torch],
    "scale.one_compiles": [a_lock_on_the_folder, the_last_rank_first, by_a_file],
}
