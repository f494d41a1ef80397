"""The hooks of the lesson's small FSDP: when a unit is gathered, used, freed and finished."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["small_fsdp"]


def small_fsdp(model: Any, make: Callable[[nn.Module], Any]) -> Callable[[], Any]:
    """Make a unit of each block and one of the rest, and hang their calls into forward and backward.

    Args:
        model: it has `blocks`.
        make: makes a unit of a module, with the methods gather, use, free and finish.

    Returns:
        What has to be called after backward.
    """
    modules, blocks = [model, *model.blocks], [make(block) for block in model.blocks]
    of_units = [make(model), *blocks]

    def enter(unit: Any) -> None:
        unit.gather()
        unit.use()

    def after(module: nn.Module, inputs: Any, output: Any, unit: Any) -> None:
        if module is not model:  # the root stays whole: backward begins with its last layer
            unit.free()
        output.register_hook(lambda gradient: enter(unit))  # just before the backward of this unit

    for module, unit in zip(modules, of_units, strict=True):
        module.register_forward_pre_hook(lambda module, inputs, unit=unit: enter(unit))
        module.register_forward_hook(functools.partial(after, unit=unit))
    return lambda: [unit.finish() for unit in of_units]
