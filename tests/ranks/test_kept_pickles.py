"""A function is pickled once, and again after any change that its pickle would show."""

from __future__ import annotations

import collections
import gc
import pickle
import sys
import types
import weakref

import pytest
import torch

from labkit.ranks import transfer, wire

PROGRAM = """
import collections
import torch

SIZE = 3
TABLE = {"rows": [1, 2]}
KIND = torch.float32


def helper(x):
    return x + SIZE


class Layer:
    scale = 2

    def __init__(self, width=4):
        self.width = width

    @property
    def area(self):
        return self.width * self.scale

    @staticmethod
    def name():
        return "layer"


def outer():
    rate = 10

    def change(new):
        nonlocal rate
        rate = new

    def inner():
        return rate

    return inner, change


inner, change = outer()


def step(x=1, *, y=2):
    return helper(x) + y + len(TABLE["rows"]), Layer().area, Layer.name(), str(KIND), inner()
"""

CHANGES = {
    "a number": "SIZE = 4",
    "an entry of a list in a dict": "TABLE['rows'].append(3)",
    "another dict": "TABLE = {'rows': [1, 2, 3]}",
    "a dtype": "KIND = torch.bfloat16",
    "another helper": "def helper(x): return x - SIZE",
    "the helper's code": "helper.__code__ = (lambda x: 7 * x).__code__",
    "an attribute of a class": "Layer.scale = 5",
    "a method": "Layer.__init__ = lambda self: setattr(self, 'width', 9)",
    "a property": "Layer.area = property(lambda self: -1)",
    "a static method": "Layer.name = staticmethod(lambda: 'other')",
    "a variable of a closure": "change(11)",
    "a default": "step.__defaults__ = (8,)",
    "a default by name": "step.__kwdefaults__['y'] = 8",
    "a name that hides a built-in": "len = lambda rows: 100",
}


@pytest.fixture
def program():
    """A module such as a notebook's, whose functions travel by value."""
    module = types.ModuleType("__main__")
    exec(compile(PROGRAM, "cell", "exec"), vars(module))
    return vars(module)


def pickled(fn):
    """The pickle that is sent, and how many were made for it."""
    made = []
    data = transfer.pickled(fn, lambda: made.append(wire.dumps(fn)) or made[0])
    return data, len(made)


def test_it_is_made_once(program):
    first, made = pickled(program["step"])
    assert made == 1 and pickled(program["step"]) == (first, 0)


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_made_again_after(change, program):
    before = program["step"]()
    pickled(program["step"])
    exec(CHANGES[change], program)
    data, made = pickled(program["step"])
    assert made == 1 and pickled(program["step"]) == (data, 0)
    assert pickle.loads(data)() == program["step"]() != before


def test_nested_containers_are_told_apart():
    step = types.FunctionType((lambda: VALUE).__code__, {"VALUE": ([1, 2],)})  # noqa: F821
    for value in (([1, 2],), (1, [2]), ([1], 2), ([], [1, 2]), ([1], [2])):
        step.__globals__["VALUE"] = value
        assert pickle.loads(pickled(step)[0])() == value


def test_an_object_that_comes_twice_is_no_number():
    step = types.FunctionType((lambda: VALUE).__code__, {})  # noqa: F821
    for number in range(10):
        inner = []
        for value in ((inner, inner), (number, inner), (inner, number)):
            step.__globals__["VALUE"] = value
            assert pickle.loads(pickled(step)[0])() == value


def test_a_submodule_that_is_imported_later_travels(monkeypatch):
    package, part = types.ModuleType("made_up"), types.ModuleType("made_up.part")
    package.__package__ = "made_up"
    monkeypatch.setitem(sys.modules, "made_up", package)
    step = types.FunctionType((lambda: made_up.part).__code__, {"made_up": package})  # noqa: F821
    assert b"made_up.part" not in pickled(step)[0]
    monkeypatch.setitem(sys.modules, "made_up.part", part)
    data, made = pickled(step)
    assert made == 1 and b"made_up.part" in data


@pytest.mark.parametrize(
    "value", [torch.ones(2), {1, 2}, object(), collections.OrderedDict(), bytearray(2), [1].append]
)
def test_what_can_change_unseen_is_pickled_each_time(value):
    step = types.FunctionType((lambda: VALUE).__code__, {"VALUE": value})  # noqa: F821
    assert [pickled(step)[1] for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("value", [list(range(transfer.PARTS + 1)), bytes(transfer.LONG)])
def test_what_is_large_is_pickled_each_time(value):
    step = types.FunctionType((lambda: VALUE).__code__, {"VALUE": value})  # noqa: F821
    assert [pickled(step)[1] for _ in range(2)] == [1, 1]


def test_an_error_is_raised_each_time(program):
    def refuse():
        raise ValueError("it cannot travel")

    for _ in range(2):
        with pytest.raises(ValueError, match="cannot travel"):
            transfer.pickled(program["step"], refuse)


def test_it_keeps_nothing_alive(program):
    class Held:
        pass

    program["TABLE"]["rows"][:] = [1, 2]
    pickled(program["step"])
    program["TABLE"]["held"] = program["held"] = held = Held()
    alive, fn = weakref.ref(held), weakref.ref(program["step"])
    del held
    program.clear()
    gc.collect()
    assert fn() is None and alive() is None
