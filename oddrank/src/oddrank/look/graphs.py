"""The graphs of ranks, compared without the sizes of their tensors, and without any number."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["other_numbers", "without_sizes"]

_TYPE = re.compile(r'"(\w+)\[[^"]*"')
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
# operations whose numbers are sizes
_SIZED = re.compile(
    r"\.(?:view|reshape|expand|split|unflatten|new_empty|new_zeros|new_ones)\(|torch\.(?:empty|zeros|ones|split)\("
    r"|all_to_all_single(?:_autograd)?\("
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


_ANY = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])")


def other_numbers(codes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the numbers in which graphs differ that are otherwise alike, sizes of tensors aside.

    Args:
        codes: The code of one graph on each rank, as Dynamo prints it.

    Returns:
        One tuple for each place in the code, with the number of each rank; [] where the graphs differ in more.

    >>> other_numbers(["z = y + 2; w = z * 5", "z = y + 3; w = z * 5"]), other_numbers(["z = y + 2", "z = y - 2"])
    ([('2', '3')], [])
    """
    plain = [without_sizes(code) for code in codes]
    if len({_ANY.sub("N", code) for code in plain}) > 1:
        return []
    places = zip(*(_ANY.findall(code) for code in plain), strict=True)
    return [numbers for numbers in places if len(set(numbers)) > 1]
