"""The graphs of ranks, compared without the sizes of their tensors."""

from __future__ import annotations

import re

__all__ = ["without_sizes"]

_TYPE = re.compile(r'"(\w+)\[[^"]*"')
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
# operations whose numbers are sizes
_SIZED = re.compile(
    r"\.(?:view|reshape|expand|split|unflatten|new_empty|new_zeros|new_ones)\(|torch\.(?:empty|zeros|ones|split)\("
)


def without_sizes(code: str) -> str:
    """Return the code of a graph without the sizes of tensors; dtypes, operations and other numbers remain.

    Args:
        code: As Dynamo prints it, with types.

    >>> without_sizes('y: "f32[4, 8][8, 1]cpu" = x.view(4, 8);  z: "f32[]cpu" = y + 2')
    'y: "f32" = x.view(N, N);  z: "f32" = y + N'
    >>> without_sizes("z = y + 2")
    'z = y + 2'
    """
    lines = (_TYPE.sub(r'"\1"', line) for line in code.splitlines())
    return "\n".join(_NUMBER.sub("N", line) if _SIZED.search(line) else line for line in lines)
