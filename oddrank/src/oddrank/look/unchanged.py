"""Parameters that have a gradient and keep their values all the same."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from oddrank.look import replicas

__all__ = ["TYPES", "Unchanged"]

# optimizer steps in which a parameter was compared whole and was the same (0 where it has changed), dtype and rate
TYPES = {"still": "int64", "dtype": "str", "rate": "float64"}
SAMPLE = 256  # numbers of a parameter that are compared first
MOST = 1 << 28  # bytes of parameters that are kept over one step


class _Kept(NamedTuple):
    """A parameter before a step: all of its numbers, or a few."""

    parameter: Any
    numbers: torch.Tensor
    whole: bool
    rate: float


class Unchanged:
    """Compares parameters before and after steps of optimizers: a few numbers first, then those whole that stayed."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, str, float]] = {}  # by the id of a parameter, as in `TYPES`
        self._changed: set[int] = set()

    def before(self, optimizer: Any) -> Callable[[], None]:
        """Keep what an optimizer's parameters hold; what is returned compares them after its step."""
        kept: list[_Kept] = []
        with contextlib.suppress(Exception), torch.no_grad():  # the program goes on
            room = MOST
            for group in optimizer.param_groups:
                rate = float(group.get("lr", 1.0))
                for p in group["params"]:
                    if id(p) in self._changed or p.grad is None:
                        continue
                    local = replicas.local_part(p).detach()
                    if not (replicas.readable(local) and local.numel()):
                        continue
                    if id(p) not in self._found:
                        kept.append(_Kept(p, _some(local), False, rate))
                    elif room >= local.nbytes and bool(replicas.local_part(p.grad).any()):
                        room -= local.nbytes
                        kept.append(_Kept(p, local.clone(), True, rate))
        return functools.partial(self._after, kept)

    def _after(self, kept: Sequence[_Kept]) -> None:
        with contextlib.suppress(Exception), torch.no_grad():
            differ: dict[Any, list[torch.Tensor]] = {}
            for one in kept:
                now = replicas.local_part(one.parameter).detach()
                apart = ((now if one.whole else _some(now)) != one.numbers).any()
                differ.setdefault(apart.device, []).append(apart)
            told = {
                device: iter(torch.stack(all_).tolist()) for device, all_ in differ.items()
            }  # asked once each
            for one in kept:
                ident, still = id(one.parameter), self._found.get(id(one.parameter), (0,))[0]
                if next(told[one.numbers.device]):
                    self._changed.add(ident)
                dtype = str(one.numbers.dtype).partition(".")[2]
                self._found[ident] = 0 if ident in self._changed else still + one.whole, dtype, one.rate

    def of(self, parameter: Any) -> tuple[int, str, float]:
        """What is known of a parameter, as in `TYPES`."""
        return self._found.get(id(parameter), (0, "", 0.0))


def _some(local: torch.Tensor) -> torch.Tensor:
    return local.reshape(-1)[:: max(1, local.numel() // SAMPLE)].clone()
