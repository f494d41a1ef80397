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
    """Parameters before a step: some whole, and of all others of one device and dtype a few numbers each."""

    whole: list[tuple[Any, torch.Tensor]]
    few: dict[Any, tuple[list[Any], torch.Tensor]]
    rates: dict[int, float]


class Unchanged:
    """Compares parameters before and after steps of optimizers: a few numbers first, then those whole that stayed."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, str, float]] = {}  # by the id of a parameter, as in `TYPES`
        self._changed: set[int] = set()

    def before(self, optimizer: Any) -> Callable[[], None]:
        """Keep what an optimizer's parameters hold; what is returned compares them after its step."""
        kept, some = _Kept([], {}, {}), []
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
                    kept.rates[id(p)] = rate
                    if id(p) not in self._found:
                        some.append(p)
                    elif room >= local.nbytes and bool(replicas.local_part(p.grad).any()):
                        room -= local.nbytes
                        kept.whole.append((p, local.clone()))
            for kind, those in _kinds(some).items():
                kept.few[kind] = those, torch.cat([_few(p) for p in those])
        return functools.partial(self._after, kept)

    def _after(self, kept: _Kept) -> None:
        with contextlib.suppress(Exception), torch.no_grad():
            for those, numbers in kept.few.values():
                now = [_few(p) for p in those]
                differ = (torch.cat(now) != numbers).split([len(one) for one in now])
                self._note(kept, those, differ, whole=False)
            for these in _kinds([p for p, _ in kept.whole]).values():
                before = {id(p): numbers for p, numbers in kept.whole}
                differ = [_local(p) != before[id(p)] for p in these]
                self._note(kept, these, differ, whole=True)

    def _note(
        self, kept: _Kept, parameters: Sequence[Any], differ: Sequence[torch.Tensor], whole: bool
    ) -> None:
        """Note which have changed; their device is asked once."""
        for p, changed in zip(parameters, torch.stack([one.any() for one in differ]).tolist(), strict=True):
            if changed:
                self._changed.add(id(p))
            still = self._found.get(id(p), (0,))[0] + whole
            dtype = str(p.dtype).partition(".")[2]
            self._found[id(p)] = 0 if changed else still, dtype, kept.rates[id(p)]

    def of(self, parameter: Any) -> tuple[int, str, float]:
        """What is known of a parameter, as in `TYPES`."""
        return self._found.get(id(parameter), (0, "", 0.0))


def _local(parameter: Any) -> torch.Tensor:
    return replicas.local_part(parameter).detach()


def _few(parameter: Any) -> torch.Tensor:
    local = _local(parameter)
    return local.reshape(-1)[:: max(1, local.numel() // SAMPLE)]


def _kinds(parameters: Sequence[Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for p in parameters:
        found.setdefault((p.device, p.dtype), []).append(p)
    return found
