"""`Ranks(check="collectives")`: before every collective the ranks compare what each is about to call.

The process group is wrapped, so collectives of compiled graphs and of C++ (DDP) are compared as well. Signatures go
through the rendezvous store on a connection of their own; a collective starts once every rank of the group is about
to start the same one. Compared are name, shapes, dtypes, reduction, root and, except for barriers and collectives with
a root, the reader's lines that led there; not compared are point-to-point messages and the split sizes of all_to_all.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch.distributed as dist

from labkit import torch_compat
from labkit.ranks import signature, standing
from labkit.ranks.signature import Signature

FINISHED = "finished"
BATCH = 256  # keys of a call that stay in the store before the old ones are deleted

_checkers: weakref.WeakSet[Checker] = weakref.WeakSet()
_client: Any = None
_call = 0
_made: Counter[str] = Counter()


class Diverged(RuntimeError):
    """The ranks of a group were about to call different collectives; the message has each rank's call and line."""


class Checker:
    """Compares the collectives of one group. `number` counts them within a call."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.name, self.made = rank, size, "?", 0
        self.number = self.deleted = 0
        self.crossings = signature.Crossings()
        _checkers.add(self)

    def christen(self, name: str) -> None:
        """Take the group's name, which a group that was destroyed may have had before."""
        self.name, self.made = name, _made[name]
        _made[name] += 1

    def key(self, number: int, rank: int) -> str:
        return f"check/{self.name}/{self.made}/{_call}/{number}/{rank}"

    def meet(self, mine: Signature) -> None:
        """Wait until every rank is about to call its next collective. Raises Diverged unless all mean the same."""
        self.number += 1
        assert standing.recorded is not None
        standing.recorded.append(mine.collective(self.name, self.number))
        standing.waiting = mine.op
        try:
            said = json.dumps(mine.wire()).encode()
            _client.set(self.key(self.number, self.rank), said)
            others = [rank for rank in range(self.size) if rank != self.rank]
            answers = _client.multi_get([self.key(self.number, rank) for rank in others])
        finally:
            standing.waiting = ""
        if self.number - self.deleted > BATCH:
            self.delete(self.number - 1)  # whoever came here has read all before
        if all(answer == said for answer in answers):
            return
        theirs = {
            rank: None if answer == FINISHED.encode() else Signature.unwire(json.loads(answer))
            for rank, answer in zip(others, answers, strict=True)
        }
        every = dict(sorted({**theirs, self.rank: mine}.items()))
        reason = signature.compare(every) or self.crossings.find(every)
        if reason:
            raise Diverged(signature.explain(every, reason, self.number, self.name))

    def delete(self, end: int) -> None:
        for number in range(self.deleted + 1, end):
            _client.delete_key(self.key(number, self.rank))
        self.deleted = end - 1


def begin(call: int) -> None:
    """Start counting anew; every rank that took part in the last call has ended it, so nobody reads its keys."""
    global _call
    for checker in list(_checkers):
        if checker.number:
            checker.delete(checker.number + 1)
        checker.number = checker.deleted = 0
        checker.crossings = signature.Crossings()
    _call = call


def finish() -> None:
    """Tell peers that wait for this rank's next collective that it has finished its part of the call."""
    for checker in list(_checkers):
        checker.number += 1
        _client.set(checker.key(checker.number, checker.rank), FINISHED)


def _method(name: str, forward: Callable[[Any, str], Callable[..., Any]]) -> Callable[..., Any]:
    def collective(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = signature.sign(name, args, kwargs, sys._getframe(1))
        if found is not None:
            self.checker.meet(found)
        return forward(self, name)(*args, **kwargs)

    return collective


def _on_inner(self: Any, name: str) -> Callable[..., Any]:
    return getattr(self.inner, name)


class CheckedGroup(dist.ProcessGroup):
    """A c10d process group that compares, then passes on to a plain one with the same backends."""

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
        self.checker.christen(name)


def _checked_shm(store: Any, rank: int, size: int, timeout: Any) -> Any:
    from labkit.ranks.shm import ShmProcessGroup

    def on_base(self: Any, name: str) -> Callable[..., Any]:
        return getattr(ShmProcessGroup, name).__get__(self)

    def named(self: Any, name: Any) -> None:
        ShmProcessGroup.setGroupName(self, name)
        self.checker.christen(name)

    methods = {name: _method(name, on_base) for name in signature.OPS if hasattr(ShmProcessGroup, name)}
    torch_compat.hide_from_dynamo(*(m.__code__ for m in methods.values()))
    kind = type("CheckedShm", (ShmProcessGroup,), {**methods, "setGroupName": named})
    group = kind(store, rank, size, timeout)
    group.checker = Checker(rank, size)
    return group


def install(backend: str, client: Any) -> None:
    """In a rank, before its process group exists: wrap every group that will be made."""
    global _client
    _client = client
    standing.recorded = deque(maxlen=standing.KEPT)
    for name in signature.OPS:
        if hasattr(dist.ProcessGroup, name):
            setattr(CheckedGroup, name, _method(name, _on_inner))
    if backend == "shm":
        torch_compat.replace_backend("shm", _checked_shm)
    else:
        torch_compat.replace_process_group(CheckedGroup)
    torch_compat.hide_from_dynamo(*_codes())


def _codes() -> list[CodeType]:
    functions = [_method("allreduce", _on_inner), _on_inner, Checker.meet, Checker.key, Checker.delete]
    return [f.__code__ for f in functions] + signature.codes()
