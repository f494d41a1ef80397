"""Plausible wrong answers to the exercises of lesson 16, each with words of the hint meant for it."""

from __future__ import annotations

import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch._inductor.compile_fx import compile_fx

RIGHT = {"A": (421, 945), "B": (1000, 63), "C": (639, 15), "D": (1023, 1), "sizes": (1008, 2048)}


def along_columns():
    return RIGHT | {"B": (40 * 16 + 15, 63)}


def along_columns_in_the_middle():
    return RIGHT | {"A": (37 * 16 + 6, 945)}


def any_in_the_middle():
    return RIGHT | {"A": (0, 945)}


def last_row_for_last_column():
    return RIGHT | {"B": (639, 63), "C": (1000, 15)}


def one_rank_each():
    return RIGHT | {"A": (421, 1)}


def three_graphs():
    return {name: given for name, given in RIGHT.items() if name != "D"}


def the_corner_counted_with_its_row():
    return RIGHT | {"D": (1023, 64)}


def the_other_corner():
    return RIGHT | {"D": (63, 1)}


def whole_row_and_column():
    return RIGHT | {"B": (1000, 64)}


def divided_by_the_other_dimension():
    return RIGHT | {"sizes": (1024, 2040)}


def cut_off():
    return RIGHT | {"sizes": (960, 1984)}


def more_than_needed():
    return RIGHT | {"sizes": (1024, 2048)}


def one_size_of_both():
    return RIGHT | {"sizes": (1008, 4096)}


def only_names():
    return "A", "B", "C"


PLACES = {
    along_columns: "counts along columns",
    along_columns_in_the_middle: "counts along columns",
    any_in_the_middle: "has such a shard, and other groups",
    last_row_for_last_column: "in the last row or column",
    one_rank_each: "group names aside",
    three_graphs: "my_places() returns",
    the_corner_counted_with_its_row: "count the rows of the mesh",
    the_other_corner: "in the last row or column",
    whole_row_and_column: "count the rows of the mesh",
    divided_by_the_other_dimension: "each has to divide",
    cut_off: "the weight has to fit",
    more_than_needed: "the next multiple",
    one_size_of_both: "the next multiple",
    only_names: "my_places() returns",
}


def rank_0_calls_first(function, x):
    compiled = torch.compile(function)
    if dist.get_rank() > 0:
        dist.barrier()
    y = compiled(x)
    if dist.get_rank() == 0:
        dist.barrier()
    return y


def all_at_once(function, x):
    dist.barrier()
    return torch.compile(function)(x)


def others_in_eager(function, x):
    return torch.compile(function)(x) if dist.get_rank() == 0 else function(x)


def without_inductor(function, x):
    return torch.compile(function, backend="aot_eager")(x)


def a_folder_for_each_start(function, x):
    box = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = box[0]

    def backend(graph, inputs):
        if dist.get_rank() > 0:
            dist.barrier()
        compiled = compile_fx(graph, inputs)
        if dist.get_rank() == 0:
            dist.barrier()
        return compiled

    return torch.compile(function, backend=backend)(x)


def without_the_collective(function, x):
    return torch.compile(lambda x: x * dist.get_world_size())(x)


def a_sleep(function, x):
    def backend(graph, inputs):
        time.sleep(30 * dist.get_rank())
        return compile_fx(graph, inputs)

    return torch.compile(function, backend=backend)(x)


def rank_1_alone_waits(function, x):
    def backend(graph, inputs):
        token = torch.zeros(1)
        if dist.get_rank() == 1:
            dist.recv(token, 0)
        compiled = compile_fx(graph, inputs)
        if dist.get_rank() == 0:
            dist.send(token, 1)
        return compiled

    return torch.compile(function, backend=backend)(x)


COMPILES = {
    a_sleep: "the others looked before the entry was there",
    rank_1_alone_waits: "on any number",
    rank_0_calls_first: "the ranks wait for each other",
    all_at_once: "the others looked before the entry was there",
    others_in_eager: "runs the function without Inductor",
    without_inductor: "nothing came to Inductor",
    a_folder_for_each_start: "on a restart the entry is in the folder",
    without_the_collective: "returns what the compiled function returns",
}

WRONG = {"scale.places": PLACES, "scale.one_compiles": COMPILES}
