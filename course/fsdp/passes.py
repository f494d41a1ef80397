"""The order of collectives, waits and matmuls in the code that Inductor writes."""

from __future__ import annotations

import re

from labkit.torch_compat import stated_hardware

__all__ = ["between", "calls_of", "stated_hardware"]

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
