"""What the guard sweep varies, one thing at a time, and how a size can be told to the compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit import torch_compat

__all__ = ["DIMENSIONS", "POLICIES", "Call", "Dimension", "Layer", "layer"]

BATCH, LENGTH, WIDTH = 4, 16, 32
LENGTHS = (16, 16, 24, 32, 40, 48, 56, 64, 24, 8, 72, 16)
BATCHES = (4, 4, 6, 8, 1, 2, 10, 1, 12, 3, 5, 4)


@dataclass
class Call:
    """One call of the layer under study: its input and arguments, and the context that it is made in."""

    x: Any
    times: int = 2
    gain: float = 1.0
    centre: bool = False
    kind: str = "gelu"
    context: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Dimension:
    """Something that varies from call to call: its values, the axis of the input that it is (None for no size).

    `vary(layer, value)` sets what has to be set on the layer, and returns the call to make.
    """

    name: str
    values: tuple[Any, ...]
    vary: Callable[[Any, Any], Call]
    axis: int | None = None
    instead: str = ""  # what to do rather than let it vary

    def labels(self) -> list[str]:
        """The values in words, as tables show them."""
        return [SHORT.get(value, value) if isinstance(value, str) else str(value) for value in self.values]


def layer() -> Any:
    """The layer under study: a product, two Python numbers, a loop, and an all-reduce over the default group."""
    funcol = torch_compat.funcol

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(WIDTH, WIDTH)
            self.repeats, self.scale = 1, 0.5

        def forward(self, x, times=2, gain=1.0, centre=False, kind="gelu"):  # type: ignore[no-untyped-def]
            h = self.up(x) * gain
            if centre:
                h = h - h.mean(-1, keepdim=True)
            for _ in range(self.repeats):
                h = torch.tanh(h) if kind == "tanh" else nn.functional.gelu(h)
            return funcol.all_reduce(h * self.scale, "sum", dist.group.WORLD) * times

    return Layer()


Layer = Callable[[], Any]  # makes a module that is called as `layer` does


def _input(batch: int = BATCH, length: int = LENGTH, dtype: Any = None) -> Any:
    x = torch.linspace(-1, 1, batch * length * WIDTH).reshape(batch, length, WIDTH)
    return x if dtype is None else x.to(dtype)


def _typed(layer: Any, name: str) -> Call:
    layer.to(getattr(torch, name))
    return Call(_input(dtype=getattr(torch, name)))


def _strided(layer: Any, kind: str) -> Call:
    x = _input()
    if kind == "transposed":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    elif kind == "every 2nd":
        x = torch.stack([x, x], 2).flatten(1, 2)[:, ::2]
    elif kind == "expanded":
        x = x[:1].expand(BATCH, LENGTH, WIDTH)
    return Call(x)


def _needs_gradient(layer: Any, needs: bool) -> Call:
    return Call(_input().requires_grad_(needs), context=torch.enable_grad)


def _attribute(name: str) -> Callable[[Any, Any], Call]:
    def vary(layer: Any, value: Any) -> Call:
        setattr(layer, name, value)
        return Call(_input())

    return vary


def _argument(name: str) -> Callable[[Any, Any], Call]:
    return lambda layer, value: replace(Call(_input()), **{name: value})


def _mode(layer: Any, name: str) -> Call:
    return Call(_input(), context=getattr(torch, name))


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)


def _with_threads(layer: Any, count: int) -> Call:
    return Call(_input(), context=lambda: _threads(count))


SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "contiguous": "dense",
    "transposed": "swapped", "every 2nd": "sliced", "enable_grad": "grad", "inference_mode": "infer",
}  # fmt: skip
DTYPES = ("float32", "float32", "bfloat16", "float32", "float64", "float16", "bfloat16", "float32", "float16")
STRIDES = (
    "contiguous",
    "contiguous",
    "transposed",
    "every 2nd",
    "expanded",
    "contiguous",
    "transposed",
    "expanded",
)
FLAGS = (False, False, True, False, True)
MODES = ("no_grad", "no_grad", "enable_grad", "inference_mode", "no_grad", "enable_grad")
COUNT, TWO = (
    "few values, or torch.where in a fixed loop (an argument compiles as often)",
    "warm up two values",
)
DIMENSIONS: dict[str, Dimension] = {
    d.name: d
    for d in (
        Dimension("sequence length", LENGTHS, lambda layer, n: Call(_input(length=n)), 1, "mark_dynamic, or pad"),
        Dimension("batch", BATCHES, lambda layer, n: Call(_input(batch=n)), 0, "mark_dynamic; warm up 1 as well"),
        Dimension("dtype", DTYPES, _typed, None, "one dtype for each compiled function"),
        Dimension("strides", STRIDES, _strided, None, ".contiguous() before the compiled part"),
        Dimension("requires_grad", FLAGS, _needs_gradient, None, "warm up both, or fix it"),
        Dimension("int argument", (2, 2, 3, 4, 5, 1, 0, 6), _argument("times"), None, TWO),
        Dimension("float argument", (1.0, 1.0, 0.5, 0.25, 2.0, 0.0), _argument("gain"), None, TWO),
        Dimension("bool argument", FLAGS, _argument("centre"), None, "warm up both"),
        Dimension("str argument", ("gelu", "gelu", "tanh", "gelu", "tanh"), _argument("kind"), None, "warm up each"),
        Dimension("int attribute", (1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1), _attribute("repeats"), None, COUNT),
        Dimension("float attribute", (0.5, 0.5, 0.6, 0.7, 0.8, 0.9, 1.5, 0.5), _attribute("scale"), None, TWO),
        Dimension("grad mode", MODES, _mode, None, "one mode for each compiled function; warm up each"),
        Dimension("thread count", (1, 1, 2, 3, 4, 1, 3), _with_threads, None, "set it once, before the first compile"),
    )
}  # fmt: skip

# how a size is told to the compiler: arguments of torch.compile, and what marks the axis of each input
POLICIES: dict[str, tuple[Mapping[str, Any], str]] = {
    "default": ({}, ""),
    "mark_dynamic": ({}, "mark_dynamic"),
    "mark_unbacked": ({}, "mark_unbacked"),
    "dynamic=True": ({"dynamic": True}, ""),
    "dynamic=False": ({"dynamic": False}, ""),
}
