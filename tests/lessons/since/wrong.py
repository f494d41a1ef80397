"""Plausible wrong answers to the exercises of lesson 17, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist


def a_python_number():
    return lambda x: dist.get_rank()


def a_tensor():
    return lambda x: torch.tensor([dist.get_rank()])


def no_fake():
    @torch.library.custom_op("wrong::no_fake", mutates_args=())
    def coordinate(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([dist.get_rank()])

    return coordinate


def not_compiled():
    return torch.compiler.disable(lambda x: torch.tensor([dist.get_rank()]))


def the_next_rank():
    @torch.library.custom_op("wrong::the_next_rank", mutates_args=())
    def coordinate(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([(dist.get_rank() + 1) % dist.get_world_size()])

    @coordinate.register_fake
    def _(x):
        return x.new_empty(1, dtype=torch.int64)

    return coordinate


def another_dtype():
    """`new_empty` takes the dtype of x."""

    @torch.library.custom_op("wrong::another_dtype", mutates_args=())
    def coordinate(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([dist.get_rank()])

    @coordinate.register_fake
    def _(x):
        return x.new_empty(1)

    return coordinate


def another_shape():
    @torch.library.custom_op("wrong::another_shape", mutates_args=())
    def coordinate(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([dist.get_rank()])

    @coordinate.register_fake
    def _(x):
        return x.new_empty(2, dtype=torch.int64)

    return coordinate


def a_number_in_the_fake():
    """An operator that returns an int, whose fake says which."""

    @torch.library.custom_op("wrong::a_number_in_the_fake", mutates_args=())
    def coordinate(x: torch.Tensor) -> int:
        return dist.get_rank()

    @coordinate.register_fake
    def _(x):
        return 0

    return coordinate


def only_numbers():
    return {"c", "d"}


def by_the_operators():
    return {"c", "d", "f"}


def coordinates_too():
    return {"c", "d", "e", "f", "g"}


def sizes_too():
    return {"b", "c", "d", "f", "g"}


def none_stays():
    return set()


def a_number():
    return 3


def nested():
    return ["c", ["d", "f", "g"]]


COORDINATE = {
    a_python_number: "Python's numbers become constants",
    a_tensor: "the graph holds rank 0's answer in a tensor",
    no_fake: "register_fake",
    not_compiled: "it has to be an operator",
    another_dtype: "the shape and dtype of the real result",
    another_shape: "the shape and dtype of the real result",
    the_next_rank: "a number of the trace has taken its place",
    a_number_in_the_fake: "must not know the number",
}
STAYS = {
    only_numbers: "distribute_tensor cuts the whole tensor in Python",
    by_the_operators: "cuts by mesh.get_local_rank()",
    coordinates_too: "takes a group from a mesh",
    sizes_too: "the size of a mesh is the same on every rank",
    none_stays: "no number of your Python's",
    a_number: "a set of letters",
    nested: "a set of letters",
}

WRONG = {"since.coordinate": COORDINATE, "since.stays": STAYS}
