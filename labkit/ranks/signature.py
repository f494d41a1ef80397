"""What a collective is, so that ranks can compare: name, tensors, reduction, root, and the lines that led there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from labkit.ranks import standing
from labkit.ranks.standing import Collective
from labkit.torch_compat import is_fake

# c10d's method -> (name as in torch.distributed, the argument whose tensors must agree, whether shapes must too)
OPS: dict[str, tuple[str, int | None, bool]] = {
    "allreduce": ("all_reduce", 0, True),
    "allreduce_coalesced": ("all_reduce_coalesced", 0, True),
    "broadcast": ("broadcast", 0, True),
    "reduce": ("reduce", 0, True),
    "allgather": ("all_gather", 1, True),
    "allgather_coalesced": ("all_gather_coalesced", 1, True),
    "all_gather_single": ("all_gather_into_tensor", 1, True),
    "_allgather_base": ("all_gather_into_tensor", 1, True),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", 1, True),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 1, True),
    "reduce_scatter": ("reduce_scatter", 0, True),
    "reduce_scatter_single": ("reduce_scatter_tensor", 0, True),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 0, True),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", 0, True),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 0, True),
    "gather": ("gather", 1, True),
    "scatter": ("scatter", 0, True),
    "alltoall": ("all_to_all", 1, False),
    "alltoall_base": ("all_to_all_single", 1, False),
    "all_to_all_single": ("all_to_all_single", 1, False),
    "barrier": ("barrier", None, False),
}
ROOTED = (
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)  # `if rank == 0: broadcast(...) else: ...` is good style
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
DEPTH = 6  # of the reader's frames

_readers: dict[CodeType, bool] = {}
_places: dict[tuple[CodeType, int], str] = {}


@dataclass(frozen=True)
class Signature:
    """One rank's next collective. `lines`: the reader's, innermost first; `names`: what they call the tensors."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    reduction: str
    root: int
    lines: tuple[str, ...]
    names: tuple[str, ...]

    def wire(self) -> dict[str, Any]:
        return vars(self)

    @staticmethod
    def unwire(fields: dict[str, Any]) -> Signature:
        """The signature that a peer sent, its lists tuples again."""
        fixed: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        return Signature(**{**fixed, "shapes": tuple(map(tuple, fields["shapes"]))})

    def collective(self, group: str, number: int) -> Collective:
        """As it stands among the last collectives of a rank."""
        settings = [self.reduction] if self.reduction else []
        settings += [f"root {self.root}"] if self.root >= 0 else []
        op = f"{self.op}({', '.join(settings)})" if settings else self.op
        place = self.lines[0] if self.lines else ""
        return Collective(group, number, op, self.shapes, self.dtypes, place, True)


def sign(
    method: str, args: Sequence[Any], kwargs: dict[str, Any], frame: FrameType | None
) -> Signature | None:
    """The signature of a call of a process group's method; None for tensors that only stand for others (tracing)."""
    op, which, shaped = OPS[method]
    tensors: list[Any] = []
    if which is not None:
        values = [*args, *kwargs.values()]
        _flatten(values[which], tensors)
        if any(is_fake(t) for t in tensors):
            return None
    opts = next((v for v in [*args, *kwargs.values()][1:] if hasattr(v, "timeout")), None)
    reduction = _reduction(getattr(opts, "reduceOp", None)) if op.startswith(REDUCING) else ""
    root = getattr(opts, "rootRank", -1) if op in ROOTED else -1
    lines, names = _reader(frame, tensors)
    shapes = tuple(tuple(t.shape) for t in tensors) if shaped else ()
    dtypes = tuple(str(t.dtype).removeprefix("torch.") for t in tensors)
    return Signature(op, shapes, dtypes if shaped else dtypes[:1], reduction, root, lines, names)


def _reduction(op: Any) -> str:
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
    known = (name for name in names if op == getattr(torch.distributed.ReduceOp, name))
    return next(known, "sum" if op is None else "?").lower()


def _flatten(value: Any, into: list[Any]) -> None:
    if isinstance(value, (list, tuple)):
        for part in value:
            _flatten(part, into)
    else:
        into.append(value)


def _reader(frame: FrameType | None, tensors: list[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    lines: list[str] = []
    names: tuple[str, ...] = ()
    while frame is not None and len(lines) < DEPTH:
        code = frame.f_code
        if code not in _readers:
            file = code.co_filename
            _readers[code] = not (standing.is_library(file) or "torchinductor" in file)
        if _readers[code]:
            at = (code, frame.f_lineno)
            if at not in _places:
                _places[at] = standing.place(code.co_filename, frame.f_lineno, code.co_name)
            if not lines:
                known = {id(t) for t in tensors}
                names = tuple(sorted(n for n, v in frame.f_locals.items() if id(v) in known))
            lines.append(_places[at])
        frame = frame.f_back
    return tuple(lines), names


def compare(every: dict[int, Signature | None]) -> str:
    """What the ranks' calls differ in, in words; '' when all mean the same. None: that rank has finished."""
    calls = [s for s in every.values() if s is not None]
    if len(calls) < len(every):
        return "a rank has finished its part of the call"
    first = calls[0]
    parts = {"name": "op", "shape": "shapes", "dtype": "dtypes", "reduction": "reduction", "root": "root"}
    found = [word for word, part in parts.items() if len({getattr(s, part) for s in calls}) > 1]
    if not found and first.op not in (*ROOTED, "barrier") and len({s.lines for s in calls}) > 1:
        found = ["line that called it"]
    return f"different {' and '.join(found)}" if found else ""


class Crossings:
    """Finds two tensors that the ranks send in opposite order from one line, where nothing else tells them apart.

    Other names alone are no difference: `all_reduce(left if rank == 0 else right)` is a correct program.
    """

    def __init__(self) -> None:
        self.seen: list[dict[int, set[str]]] = []

    def find(self, every: dict[int, Signature | None]) -> str:
        """What was swapped, in words, once both calls are known; '' otherwise."""
        sets = {rank: set(s.names) for rank, s in every.items() if s is not None}
        shared = set.intersection(*sets.values())
        own = {rank: names - shared for rank, names in sets.items()}
        if not all(own.values()):
            return ""
        for before in self.seen:
            for rank, names in own.items():
                for peer in own:
                    if (
                        peer > rank
                        and (mine := before[rank] & own[peer])
                        and (theirs := before[peer] & names)
                    ):
                        first, second = min(mine), min(theirs)
                        return (
                            f"swapped tensors: rank {rank} sent `{first}` and then `{second}`,"
                            f" rank {peer} `{second}` and then `{first}`"
                        )
        if len({frozenset(names) for names in own.values()}) > 1 and len(self.seen) < 64:
            self.seen.append(own)
        return ""


def explain(every: dict[int, Signature | None], reason: str, number: int, group: str) -> str:
    """The message of a divergence: each rank's call and its lines, outermost difference included."""
    lines = [f"different collectives ({reason}), number {number} of this call{_of(group)}:"]
    calls = [s.lines for s in every.values() if s is not None]
    for rank, s in every.items():
        if s is None:
            lines.append(f"    rank {rank}  none: it has finished its part")
            continue
        said = s.collective(group, number).describe()
        if len({c[:1] for c in calls}) == 1:  # the same innermost line: show the first that differs
            depth = next((i for i, at in enumerate(zip(*calls, strict=False)) if len(set(at)) > 1), 0)
            said += f", from {s.lines[depth]}" if depth else ""
        lines.append(f"    rank {rank}  {said}")
    return "\n".join(lines)


def _of(group: str) -> str:
    return "" if group == "0" else f" in group {group}"


def codes() -> list[CodeType]:
    """The code that runs inside a collective, for Dynamo to leave alone."""
    found: list[Any] = [f for f in vars(sys.modules[__name__]).values() if isinstance(f, FunctionType)]
    methods: list[Any] = [
        Crossings.find,
        Crossings.__init__,
        Signature.wire,
        Signature.collective,
        Signature.unwire,
    ]
    return [f.__code__ for f in (*found, *methods)]
