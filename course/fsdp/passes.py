"""The order of collectives, waits and matmuls in the code that Inductor writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from course.shared.capture import inductor_code
from labkit.torch_compat import stated_hardware

__all__ = ["between", "calls_of", "written"]

CALLS = re.compile(
    r"(all_gather_into_tensor(?:_out)?|reduce_scatter_tensor|wait_tensor|extern_kernels\.mm)(?=\.default\(|\()"
)
WORDS = {"extern_kernels.mm": "mm", "wait_tensor": "wait", "reduce_scatter_tensor": "reduce_scatter"}


def calls_of(code: str) -> list[str]:
    """The collectives, waits and matmuls that Inductor's code calls, in order, by short names.

    >>> calls_of("def call(args): extern_kernels.mm(a, b); wait_tensor.default(c)")
    ['mm', 'wait']
    """
    found = CALLS.findall(code[code.index("def call(") :])
    return [WORDS.get(call, call.replace("_into_tensor", "").replace("_out", "")) for call in found]


def written(
    config: Any, settings: dict[str, Any], program: Callable[..., Any], *given: Any, execute: bool = False
) -> list[list[str]]:
    """Compile a program with Inductor, on a rank, and list the calls of the code of each graph.

    Estimated run times are those of a link of 50 GB/s and of a processor of 0.05 Tflop/s, on any machine.

    Args:
        config: the module of Inductor's settings.
        settings: those to change; what this version of torch does not have is left out.
        program: called with what is given.
        given: the arguments.
        execute: whether the code runs, and a backward of the result's sum; if not, it is only compiled.
    """
    torch.compiler.reset()
    known, pieces = config.get_config_copy(), list[str]()
    settings = {name: value for name, value in settings.items() if name in known}
    with stated_hardware(gbytes=50, tflops=0.05), config.patch(force_disable_caches=True, **settings):
        result = torch.compile(program, backend=inductor_code(pieces, execute))(*given)
        if execute:
            result.sum().backward()
    return [calls_of(piece) for piece in pieces]


def between(calls: list[str]) -> int:
    """How many matmuls stand between a collective and its wait, over all of them, in the order of the code.

    >>> between(["all_gather", "mm", "wait", "mm"])
    1
    """
    open_at: list[int] = []
    found = 0
    for i, call in enumerate(calls):
        if call in ("all_gather", "reduce_scatter"):
            open_at.append(i)
        elif call == "wait" and open_at:
            found += calls[open_at.pop(0) : i].count("mm")
    return found
