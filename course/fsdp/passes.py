"""The order of collectives, waits and matmuls in the code that Inductor writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from course.shared.capture import inductor_code
from labkit.torch_compat import stated_hardware

__all__ = ["calls_of", "covered", "written"]

CALLS = re.compile(
    r"(all_gather_into_tensor(?:_out)?|reduce_scatter_tensor|wait_tensor|extern_kernels\.mm)(?=\.default\(|\()"
)
# settings that the oldest torch of this course lacks; the cells say since when there is each
LATER = [
    f"aten_distributed_optimizations.{name}"
    for name in ("compute_estimator", "pre_bucketing_fsdp_collectives", "enable_simple_overlap")
]
WORDS = {"extern_kernels.mm": "mm", "wait_tensor": "wait", "reduce_scatter_tensor": "reduce_scatter"}


def calls_of(code: str) -> list[str]:
    """The collectives, waits and matmuls that Inductor's code calls, in order, by short names.

    >>> calls_of("def call(args): extern_kernels.mm(a, b); wait_tensor.default(c)")
    ['mm', 'wait']
    """
    found = CALLS.findall(code[code.index("def call(") :])
    return [WORDS.get(call, call.replace("_into_tensor", "").replace("_out", "")) for call in found]


def written(
    config: Any,
    rates: dict[str, float],
    settings: dict[str, Any],
    program: Callable[..., Any],
    *given: Any,
    execute: bool = False,
) -> list[list[str]]:
    """Compile a program with Inductor, on a rank, and list the calls of the code of each graph.

    Args:
        config: the module of Inductor's settings.
        rates: what passes estimate run times with, on any machine: `gbytes` a second of a link, `tflops` of matmuls.
        settings: those to change; one of a later version of torch is left out.
        program: called with what is given.
        given: the arguments.
        execute: whether the code runs, and a backward of the result's sum; if not, it is only compiled.

    Raises:
        ValueError: Inductor has no such setting.
    """
    torch.compiler.reset()
    known, pieces = config.get_config_copy(), list[str]()
    for name in settings:
        if name not in known and name not in LATER:
            raise ValueError(f"Inductor has no setting {name!r}")
    settings = {name: value for name, value in settings.items() if name in known}
    with stated_hardware(**rates), config.patch(force_disable_caches=True, **settings):
        result = torch.compile(program, backend=inductor_code(pieces, execute))(*given)
        if execute:
            result.sum().backward()
    return [calls_of(piece) for piece in pieces]


def covered(calls: list[str]) -> tuple[int, int]:
    """Count the collectives that have a matmul between their start and their wait, and all collectives.

    Waits are taken in the order of the starts.

    >>> covered(["all_gather", "mm", "wait", "all_gather", "wait", "mm"])
    (1, 2)
    """
    starts = [i for i, call in enumerate(calls) if call in ("all_gather", "reduce_scatter")]
    waits = [i for i, call in enumerate(calls) if call == "wait"]
    pairs = list(zip(starts, waits, strict=True))
    return sum("mm" in calls[start:wait] for start, wait in pairs), len(pairs)
