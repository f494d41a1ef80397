"""Before every collective the ranks compare what each is about to call: `Ranks(verify=True)`, `oddrank look --verify`.

The process group is wrapped, so collectives of compiled graphs and of C++ (DDP) are compared as well. Signatures
travel through the rendezvous store on connections of their own, one for each thread that calls collectives. A
collective starts once every rank of the group is about to start the same one. Name, shapes, dtypes, reduction and
root are compared and, except for barriers and collectives with a root, the reader's lines that led there. Point-to-
point messages and the split sizes of all_to_all are not compared.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch.distributed as dist

from oddrank import torch_names
from oddrank.live import introspect
from oddrank.live.introspect import Collective
from oddrank.live.stacks import hide

hide(__file__)

# c10d's method -> the collective's name in torch.distributed
METHODS = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter", "barrier": "barrier",
    "allgather": "all_gather", "allgather_coalesced": "all_gather_coalesced",
    "all_gather_single": "all_gather_into_tensor", "_allgather_base": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter_tensor", "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all_single", "all_to_all_single": "all_to_all_single",
}  # fmt: skip
PASSED = ("send", "recv", "recv_anysource")  # not compared
INPUT_LAST = ("all_gather", "gather", "all_to_all")  # their tensors that must agree are the second argument
# `if rank == 0: broadcast(...) else: ...` is good style
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
DEPTH = 6  # of the reader's frames

_readers: dict[CodeType, bool] = {}
_places: dict[tuple[CodeType, int], str] = {}
FINISHED = "finished"
BATCH = 256  # keys of a call that stay in the store before the old ones are deleted

_checkers: weakref.WeakSet[Checker] = weakref.WeakSet()
_clients = threading.local()  # a thread that waits for its peers holds its connection
_client: Any = None
_call = 0
_made: Counter[str] = Counter()


@dataclass(frozen=True)
class Signature:
    """What one rank is about to call.

    Attributes:
        op: The collective, as torch.distributed names it.
        shapes: The shapes of its tensors; empty where they may differ between ranks.
        dtypes: Their dtypes.
        reduction: Such as 'sum'; '' for none.
        root: The root; -1 for none.
        lines: The reader's lines that led there, innermost first.
        names: The variables of the innermost line's function that hold the tensors.
        thread: Where none of these lines led there, the name of a thread that is not the main one.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    reduction: str
    root: int
    lines: tuple[str, ...]
    names: tuple[str, ...]
    thread: str = ""

    def dumps(self) -> bytes:
        """Return the bytes that peers compare with theirs."""
        return json.dumps(vars(self)).encode()

    @staticmethod
    def loads(sent: bytes) -> Signature:
        """Return the signature that a peer has sent, its lists as tuples again."""
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sent).items()
        }
        return Signature(**{**fields, "shapes": tuple(map(tuple, fields["shapes"]))})

    def collective(self, group: str, number: int) -> Collective:
        """Return it as one of the last collectives of a rank, number `number` of `group`.

        Args:
            group: Name of the process group.
            number: The collective's number in it.
        """
        settings = [self.reduction] if self.reduction else []
        settings += [f"root {self.root}"] if self.root >= 0 else []
        op = f"{self.op}({', '.join(settings)})" if settings else self.op
        place = self.lines[0] if self.lines else ""
        return Collective(group, number, op, self.shapes, self.dtypes, place, True, time_ns=time.time_ns())


def sign(
    method: str, args: Sequence[Any], kwargs: dict[str, Any], frame: FrameType | None
) -> Signature | None:
    """Return the signature of a call of a process group's method.

    Args:
        method: The method, one of METHODS.
        args: Its positional arguments, without the group.
        kwargs: Its keyword arguments.
        frame: The frame that calls it.

    Returns:
        The signature; None for fake tensors, with which torch only traces.
    """
    op, values = METHODS[method], [*args, *kwargs.values()]
    tensors: list[Any] = []
    if op != "barrier":
        _flatten(values[op.startswith(INPUT_LAST)], tensors)
        if any(torch_names.is_fake(t) for t in tensors):
            return None
    opts = next((v for v in values[1:] if hasattr(v, "timeout")), None)
    reduction = _reduction(getattr(opts, "reduceOp", None)) if op.startswith(REDUCING) else ""
    root = getattr(opts, "rootRank", -1) if op in ROOTED else -1
    lines, names = _reader(frame, tensors)
    shaped = not op.startswith("all_to_all")
    shapes = tuple(tuple(t.shape) for t in tensors) if shaped else ()
    dtypes = tuple(str(t.dtype).removeprefix("torch.") for t in tensors)
    here = threading.current_thread()
    thread = here.name if not lines and here is not threading.main_thread() else ""
    return Signature(op, shapes, dtypes if shaped else dtypes[:1], reduction, root, lines, names, thread)


def _reduction(op: Any) -> str:
    return "sum" if op is None else op.op.name.lower()


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
            _readers[code] = not introspect.is_library(code.co_filename)
        if _readers[code]:
            at = (code, frame.f_lineno)
            if at not in _places:
                _places[at] = introspect.place(code.co_filename, frame.f_lineno, code.co_name)
            if not lines:
                known = {id(t) for t in tensors}
                names = tuple(sorted(n for n, v in frame.f_locals.items() if id(v) in known))
            lines.append(_places[at])
        frame = frame.f_back
    return tuple(lines), names


def compare(every: dict[int, Signature | None]) -> str:
    """Say what the calls of ranks differ in.

    Args:
        every: Each rank's signature; None for a rank that has finished its part of the call.

    Returns:
        Such as 'different dtype and root'; '' if all mean the same.
    """
    calls = [s for s in every.values() if s is not None]
    if len(calls) < len(every):
        return "a rank has finished its part of the call"
    first = calls[0]
    parts = {"name": "op", "shape": "shapes", "dtype": "dtypes", "reduction": "reduction", "root": "root"}
    found = [word for word, part in parts.items() if len({getattr(s, part) for s in calls}) > 1]
    if not found and first.op not in (*ROOTED, "barrier") and len({s.lines for s in calls}) > 1:
        found = ["line that called it"]
    return f"different {' and '.join(found)}" if found else ""


class Swaps:
    """Finds two tensors that ranks send in opposite order from one line, by the names of the variables.

    Other names alone are no difference: `all_reduce(left if rank == 0 else right)` is a correct program.
    """

    def __init__(self) -> None:
        self.seen: list[dict[int, set[str]]] = []

    def find(self, every: dict[int, Signature | None]) -> str:
        """Say which tensors were swapped, once both calls are known.

        Args:
            every: Each rank's signature of one collective.

        Returns:
            Which ranks sent which variables in which order; '' if none were swapped.
        """
        sets = {rank: set(s.names) for rank, s in every.items() if s is not None}
        shared = set.intersection(*sets.values())
        own = {rank: names - shared for rank, names in sets.items()}
        if not all(own.values()):
            return ""
        for before in self.seen:
            for rank, peer in itertools.combinations(own, 2):
                mine, theirs = before[rank] & own[peer], before[peer] & own[rank]
                if mine and theirs:
                    first, second = min(mine), min(theirs)
                    return (
                        f"swapped tensors: rank {rank} sent `{first}` and then `{second}`,"
                        f" rank {peer} `{second}` and then `{first}`"
                    )
        if len({frozenset(names) for names in own.values()}) > 1 and len(self.seen) < 64:
            self.seen.append(own)
        return ""


def describe_difference(every: dict[int, Signature | None], reason: str, number: int, group: str) -> str:
    """Return the message of a divergence: each rank's call and the first of its lines that differs.

    Args:
        every: Each rank's signature; None for a rank that has finished.
        reason: What they differ in.
        number: Number of the collective in this call.
        group: Name of the process group.
    """
    lines = [f"different collectives ({reason}), number {number} of this call{_of(group)}:"]
    calls = [s.lines for s in every.values() if s is not None]
    for rank, s in every.items():
        if s is None:
            lines.append(f"    rank {rank}  none: it has finished its part")
            continue
        said = s.collective(group, number).owned().describe() + (f" in thread {s.thread}" if s.thread else "")
        if len({c[:1] for c in calls}) == 1:  # the same innermost line: show the first that differs
            depth = next((i for i, at in enumerate(zip(*calls, strict=False)) if len(set(at)) > 1), 0)
            said += f", from {s.lines[depth]}" if depth else ""
        lines.append(f"    rank {rank}  {said}")
    return "\n".join(lines)


def _of(group: str) -> str:
    return "" if group == "0" else f" in group {group}"


class Diverged(RuntimeError):
    """The ranks of a group were about to call different collectives. The message has each rank's call and line."""


class Checker:
    """Compares the collectives of one group on one rank. `number` counts them within a call.

    Args:
        rank: This rank.
        size: Number of ranks in the group.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.name, self.made = rank, size, "?", 0
        self.number = self.deleted = 0
        self.swaps = Swaps()
        _checkers.add(self)

    def set_name(self, name: str) -> None:
        """Set the group's name, which a destroyed group may have had before."""
        self.name, self.made = name, _made[name]
        _made[name] += 1

    def key(self, number: int, rank: int) -> str:
        """Return the key in the store of a rank's collective of that number."""
        return f"check/{self.name}/{self.made}/{_call}/{number}/{rank}"

    def meet(self, mine: Signature) -> None:
        """Wait until every rank is about to call its next collective, and compare them.

        Args:
            mine: What this rank is about to call.

        Raises:
            Diverged: If the ranks are about to call different collectives.
        """
        self.number += 1
        assert introspect.recorded is not None
        introspect.recorded.append(mine.collective(self.name, self.number))
        introspect.waiting = mine.op
        try:
            said = mine.dumps()
            client = _connection()
            client.set(self.key(self.number, self.rank), said)
            others = [rank for rank in range(self.size) if rank != self.rank]
            answers = client.multi_get([self.key(self.number, rank) for rank in others])
        finally:
            introspect.waiting = ""
        if self.number - self.deleted > BATCH:
            self.delete(self.number - 1)  # whoever came here has read all before
        if all(answer == said for answer in answers):
            return
        every: dict[int, Signature | None] = {self.rank: mine}
        for rank, answer in zip(others, answers, strict=True):
            every[rank] = None if answer == FINISHED.encode() else Signature.loads(answer)
        every = dict(sorted(every.items()))
        reason = compare(every) or self.swaps.find(every)
        if reason:
            raise Diverged(describe_difference(every, reason, self.number, self.name))

    def delete(self, end: int) -> None:
        """Delete this rank's keys of collectives before number `end`."""
        for number in range(self.deleted + 1, end):
            _connection().delete_key(self.key(number, self.rank))
        self.deleted = end - 1


def _connection() -> Any:
    """The connection of this thread to the rendezvous store."""
    if getattr(_clients, "of", None) is not _client:
        _clients.of, _clients.mine = _client, _client.clone()
    return _clients.mine


def begin(call: int) -> None:
    """Begin a call: count anew, and delete the keys of the last call, which every rank has ended."""
    global _call
    for checker in list(_checkers):
        if checker.number:
            checker.delete(checker.number + 1)
        checker.number = checker.deleted = 0
        checker.swaps = Swaps()
    _call = call


def finish() -> None:
    """Tell peers that wait for this rank's next collective that it has finished its part of the call."""
    for checker in list(_checkers):
        checker.number += 1
        _connection().set(checker.key(checker.number, checker.rank), FINISHED)


def _method(name: str, forward: Callable[[Any, str], Callable[..., Any]]) -> Callable[..., Any]:
    def collective(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = sign(name, args, kwargs, sys._getframe(1))
        if found is not None:
            self.checker.meet(found)
        return forward(self, name)(*args, **kwargs)

    return collective


def _passed(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: getattr(self.inner, name)(*args, **kwargs)


def _on_inner(self: Any, name: str) -> Callable[..., Any]:
    return getattr(self.inner, name)


class CheckedGroup(dist.ProcessGroup):
    """A c10d process group that compares each collective, then passes it on to a plain group with the same backends."""

    def __init__(self, store: Any, rank: int, size: int):
        super().__init__(rank, size)  # type: ignore[call-arg]  # the one that C++ calls back, as its stubs do not say
        self.inner = dist.ProcessGroup(store, rank, size)
        self.checker = Checker(rank, size)

    def get_group_store(self) -> Any:
        return self.inner.get_group_store()

    def _register_backend(self, *args: Any, **kwargs: Any) -> None:
        super()._register_backend(*args, **kwargs)
        self.inner._register_backend(*args, **kwargs)

    def _set_default_backend(self, *args: Any) -> None:
        super()._set_default_backend(*args)
        self.inner._set_default_backend(*args)

    def _set_group_name(self, name: Any) -> None:
        super()._set_group_name(name)
        self.inner._set_group_name(name)
        self.checker.set_name(name)


def _checked(base: type) -> Callable[..., Any]:
    """What makes groups of a process group that is written in Python, checked."""

    def on_base(self: Any, name: str) -> Callable[..., Any]:
        return getattr(base, name).__get__(self)

    def named(self: Any, name: Any) -> None:
        base.setGroupName(self, name)  # type: ignore[attr-defined]
        self.checker.set_name(name)

    methods = {name: _method(name, on_base) for name in METHODS if hasattr(base, name)}
    kind = type(f"Checked{base.__name__}", (base,), {**methods, "setGroupName": named})

    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
        group = kind(store, rank, size, timeout)
        group.checker = Checker(rank, size)
        return group

    return create


def install(backend: str, client: Any, kind: type | None = None) -> None:
    """Make c10d build checked groups; called in a rank before its process group exists.

    Args:
        backend: 'gloo' or 'shm'.
        client: A connection to the rendezvous store.
        kind: The class of the backend's groups, where it is written in Python.
    """
    global _client
    _client = client
    introspect.recorded = deque(maxlen=introspect.KEPT)
    for name in METHODS:
        if hasattr(dist.ProcessGroup, name):
            setattr(CheckedGroup, name, _method(name, _on_inner))
    for name in PASSED:
        setattr(CheckedGroup, name, _passed(name))
    if kind is not None:
        torch_names.replace_backend(backend, _checked(kind))
    else:
        torch_names.replace_process_group(CheckedGroup)
    torch_names.hide_from_dynamo(*introspect.codes(sys.modules[__name__]), calls=True)
