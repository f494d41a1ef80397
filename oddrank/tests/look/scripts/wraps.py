"""Finds what oddrank.look has put around torch's functions, and calls each by position and by name: `wraps.py OUT`.

In the place of torch's own function stands one that notes how it was called.
"""

import inspect
import json
import os
import sys
import types
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.distributed.tensor
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NATIVE = (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)
LOOK = os.path.join("oddrank", "look") + os.sep


class Anything(mock.MagicMock):
    """An argument that has what the wrappers read."""

    def step(self, closure=None):
        """What an optimizer has."""


def train():
    """Steps after which all that look wraps late is wrapped, and all that it records is recorded."""
    model = DistributedDataParallel(nn.Linear(2, 2))
    compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        compiled(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def wrappers():
    """Every function of torch's modules and classes that is one of oddrank.look."""
    owners = {}
    for name, module in list(sys.modules.items()):
        if module is not None and name.partition(".")[0] == "torch":
            held = vars(module).values()
            for owner in (module, *(one for one in held if issubclass(type(one), type))):
                owners[id(owner)] = owner
    for owner in owners.values():
        for name, held in list(vars(owner).items()):
            fn = held.__func__ if type(held) in (staticmethod, classmethod) else held
            if type(fn) is types.FunctionType and LOOK in fn.__code__.co_filename and not native(fn):
                yield f"{owner.__name__}.{name}", name, fn


def native(fn):
    """Whether a wrapper holds a function of C, such as Tensor.item: it passes on whatever it is given."""
    return any(type(cell.cell_contents) in NATIVE for cell in fn.__closure__ or ())


def inner(fn, name):
    """The cell of a wrapper that holds torch's own function."""
    for cell in fn.__closure__ or ():
        held = cell.cell_contents
        if (
            type(held) is types.FunctionType
            and held.__name__ == name
            and LOOK not in held.__code__.co_filename
        ):
            return cell
    raise LookupError(f"no cell of {fn} holds torch's {name}")


def calls(signature):
    """Arguments by position and by name, as the signature takes them; the first, `self` or not, has no name."""
    given = [(one, Anything()) for one in signature.parameters.values()]
    by_position = [
        value for one, value in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    only = {one.name: value for one, value in given if one.kind is one.KEYWORD_ONLY}
    by_name = {one.name: value for one, value in given[1:] if one.kind is one.POSITIONAL_OR_KEYWORD}
    yield "by position", by_position, only
    yield "by name", by_position[:1], by_name | only


def same(a, b):
    return a is b or (type(a) is type(b) and isinstance(a, (str, tuple, dict)) and a == b)


def check(fn, name):
    """What is wrong with the calls of a wrapper; empty where nothing is."""
    cell = inner(fn, name)
    original, wrong, got = cell.cell_contents, [], []
    signature = inspect.signature(original)

    def stub(*args, **kwargs):
        got.append(signature.bind(*args, **kwargs).arguments)
        return ()

    stub.__name__, cell.cell_contents = name, stub
    for how, args, kwargs in calls(signature):
        got.clear()
        wanted = signature.bind(*args, **kwargs).arguments
        if name == "init_process_group":  # --backend
            wanted["backend"] = "gloo"
        try:
            found = fn(*args, **kwargs)
            if inspect.isgenerator(found):
                list(found)
            if (
                len(got) != 1
                or got[0].keys() != wanted.keys()
                or not all(same(got[0][k], wanted[k]) for k in wanted)
            ):
                wrong.append(f"{how}: torch's function got {got}, not {wanted}")
        except Exception as error:
            wrong.append(f"{how}: {type(error).__name__}: {error}")
    cell.cell_contents = original
    return wrong


class Named(torch.optim.SGD):
    """An optimizer of which `step` takes the words that wrappers use."""

    def step(self, closure=None, *, step=None, fn=None, args=()):
        return step, fn, args


@torch.compile(backend="eager")
def compiled(x, of, made, fn, original, around):
    return x * of + made + fn + original + around


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    own = {"compiled": float(compiled(x=torch.ones(()), of=2, made=3, fn=4, original=5, around=6))}
    own["step"] = Named([nn.Parameter(torch.ones(1))]).step(step=1, fn=2, args=(3,))
    found = {}
    for place, name, fn in wrappers():
        found.setdefault(id(fn), (place, check(fn, name)))
    with open(sys.argv[1], "w") as file:
        json.dump({"wrong": {place: said for place, said in found.values()}, "own": own}, file)
    dist.destroy_process_group()
