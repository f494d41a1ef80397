"""Lesson 16, `scale.places`: which rank of a mesh wrote a graph, how many ranks have it, and sizes with one for all."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from labkit import files
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["GRAPHS", "MESH", "SIZES", "WRITERS", "places"]

MESH, SIZES = (16, 64), (1000, 2040)  # dp x tp; rows and columns of the weight
WRITERS = {"A": 421, "B": 1000, "C": 639, "D": 1023}  # the middle, two edges, the corner
FORM = 'my_places() returns {"A": (rank, how many), "B": ..., "C": ..., "D": ..., "sizes": (rows, columns)}'
_PARTS = re.split(r"=== (\w)\n", files.ours("data/captured/mesh_ranks.txt").read_text(encoding="utf-8"))
GRAPHS = dict(zip(_PARTS[1::2], _PARTS[2::2], strict=True))


def shard(place: int, sizes: tuple[int, int] = SIZES) -> tuple[int, ...]:
    """The shape of the weight on a rank of the mesh.

    >>> shard(0), shard(1023)
    ((63, 32), (55, 24))
    """
    where = divmod(place, MESH[1])
    each = [-(-size // parts) for size, parts in zip(sizes, MESH, strict=True)]
    cut = zip(sizes, each, where, strict=True)
    return tuple(max(0, min(length, size - length * index)) for size, length, index in cut)


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each graph's rank and number of ranks, and the smallest sizes with one shape for all."""
    answer = on_ranks(ranks, _asked, attempt, only=0, hint=FORM)[0]
    if not isinstance(answer, dict) or set(answer) != {*WRITERS, "sizes"}:
        raise Mistake(f"my_places() returns {str(answer)[:100]}", FORM)
    for name, pair in answer.items():
        if not isinstance(pair, tuple):
            raise Mistake(f"{name}: {pair}", "a pair of whole numbers; " + FORM)
    shapes = Counter(shard(place) for place in range(MESH[0] * MESH[1]))
    for name, writer in WRITERS.items():
        rank, number = answer[name]
        if rank != writer:
            raise Mistake(f"{name}: rank {rank}", _why_rank(rank, writer))
        if number != shapes[shard(writer)]:
            hint = "count the rows of the mesh with this number of rows, and the columns with this number of columns"
            if number == 1:
                hint = "group names aside: how many ranks have a shard of this shape?"
            raise Mistake(f"{name}: {number:,} ranks have it", hint)
        say(f"{name}: rank {rank:,}, and {number:,} ranks have this graph")
    rows, columns = answer["sizes"]
    if rows < SIZES[0] or columns < SIZES[1]:
        raise Mistake(f"sizes {rows} x {columns}", f"the weight has to fit: at least {SIZES[0]} x {SIZES[1]}")
    kinds = len({shard(place, (rows, columns)) for place in range(MESH[0] * MESH[1])})
    if kinds > 1:
        hint = "rows are cut by the first dimension of the mesh, columns by the second: each has to divide"
        raise Mistake(f"sizes {rows} x {columns}: {kinds} different shards", hint)
    if rows - MESH[0] >= SIZES[0] or columns - MESH[1] >= SIZES[1]:
        seen = f"sizes {rows} x {columns}: one graph for all, and there are smaller ones"
        raise Mistake(
            seen, "every row and column that is added is work: the next multiple, of each dimension by itself"
        )
    say(f"{rows} x {columns}: one graph for all")


def _why_rank(rank: int, writer: int) -> str:
    row, column = divmod(writer, MESH[1])
    if rank == column * MESH[0] + row:
        return "that counts along columns: rank 1 is the neighbour of rank 0 in its row"
    if 0 <= rank < MESH[0] * MESH[1] and shard(rank) == shard(writer):
        return (
            "this rank has such a shard, and other groups: a name in the graph is the column, another the row"
        )
    return "the shape of the weight says whether it is in the last row or column; the group names say which crossing"


def _asked(attempt: Attempt) -> Any:
    answer = attempt()
    if not isinstance(answer, dict):
        return type(answer).__name__
    return {str(name): _pair(given) for name, given in answer.items()}


def _pair(given: Any) -> tuple[int, int] | str:
    """Two whole numbers, of Python, numpy or torch; or what is given, as text."""
    try:
        first, second = given.tolist() if hasattr(given, "tolist") else given
        if not isinstance(first, bool) and not isinstance(second, bool):
            return operator.index(first), operator.index(second)
    except (TypeError, ValueError):
        pass
    return repr(given)[:100]


places = Exercise(
    "scale.places",
    "which rank wrote the graph",
    "medium",
    10,
    (
        "the rank that wrote each of the four graphs (group names tell), and how many of the 1,024 ranks have it, those"
        " names aside",
        "the smallest sizes, at least 1000 x 2040, with one graph for all",
    ),
    judge,
)
