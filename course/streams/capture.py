"""Eager torch code with streams, written down as a stream program: needs no GPU, and runs the code on CPU tensors.

While a function is captured, torch's streams, events and `dist.all_reduce` are replaced by objects that write down what
they are asked for, and a dispatch mode writes down the operators. The function itself computes its usual values, in the
order of its lines.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import course
import labkit
from course.shared.streams import ops
from course.shared.streams.ops import DEFAULT, StreamError
from course.shared.streams.program import Program
from labkit import torch_compat

__all__ = ["NCCL", "Captured", "capture"]

NCCL = "nccl"  # the stream on which `ProcessGroupNCCL` runs what was called with async_op=True
ASKED = (
    "query() asks the GPU how far it is, and a captured function has no GPU; a loop around it blocks the host"
)
NOT_THE_READERS = tuple(str(Path(module.__file__ or "").parent) for module in (torch, labkit, course))
ASSIGNED = re.compile(r"\s*(\w+(?:\s*,\s*\w+)*)\s*=(?!=)")


class Captured(Program):
    """The program of a function: `value` is what the function returned, `operators` names its kernels' operators."""

    value: Any = None
    operators: tuple[str, ...] = ()


def capture(fn: Callable[..., Any], *args: Any, units: float | Mapping[str, float] = 1.0) -> Captured:
    """Write down what a function puts into the queues of a GPU.

    Streams, events and tensors are called as the function's own lines call them, kernels by the operator. Views and
    `empty` are no kernels; with `.item()` the host waits for its stream. `dist.all_reduce(async_op=True)` gets the
    stream, the events and the two waits that `ProcessGroupNCCL` gives it; other collectives are not captured.

    Args:
        fn: the function. It makes its own streams.
        args: what it is called with; tensors on the CPU.
        units: how long a kernel takes, in units: one number, or a number by operator such as `{"mm": 4}`, 1 for others.

    Returns:
        The program, with `value` and `operators`.

    Raises:
        StreamError: the program breaks a rule of streams.
        Exception: what `fn` raises.

    >>> def beside(x):
    ...     side = torch.Stream(x.device)
    ...     y = x @ x
    ...     with side:
    ...         z = x + 1
    ...     return y, z
    >>> [op.stream for op in capture(beside, torch.ones(2, 2)) if isinstance(op, ops.Kernel)]
    ['default', 'side']
    """
    tape = _Tape(units)
    named = inspect.signature(fn).bind(*args).arguments
    for name, value in named.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, torch.Tensor):
                tape.names[tape.block(one)] = name
    with tape.standing_in(fn), torch_compat.around_operators(tape.operator):
        value = fn(*args)
    made = tape.program(fn.__name__.replace("_", " "))
    made.value = value
    made.operators = tuple(op.name for op in tape.ops if isinstance(op, ops.Kernel))
    return made


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of an argument or a result."""
    return [
        t for t in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(t, torch.Tensor)
    ]


class _Stream:
    """Stands for a torch.Stream."""

    def __init__(self, tape: _Tape, token: str) -> None:
        self.tape, self.token = tape, token
        self.before: list[str] = []

    def __enter__(self) -> _Stream:
        self.before.append(self.tape.current)
        self.tape.current = self.token
        return self

    def __exit__(self, *error: Any) -> None:
        self.tape.current = self.before.pop()

    def wait_event(self, event: _Event) -> None:
        event.wait(self)

    def wait_stream(self, other: _Stream) -> None:
        self.tape.ops.append(ops.WaitStream(self.token, other.token))

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event(self.tape)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.tape.ops.append(ops.Synchronize("stream", self.token))

    def query(self) -> bool:
        raise StreamError(ASKED)


class _Event:
    """Stands for a torch.Event."""

    def __init__(self, tape: _Tape) -> None:
        self.tape, self.token = tape, tape.token("event")

    def record(self, stream: _Stream | None = None) -> None:
        self.tape.ops.append(ops.Record(self.token, stream.token if stream else self.tape.current))

    def wait(self, stream: _Stream | None = None) -> None:
        self.tape.ops.append(ops.Wait(self.token, stream.token if stream else self.tape.current))

    def synchronize(self) -> None:
        self.tape.ops.append(ops.Synchronize("event", self.token))

    def query(self) -> bool:
        raise StreamError(ASKED)


class _Work:
    """Stands for a Work: it holds the tensor until somebody has waited, as `ProcessGroupNCCL` does."""

    def __init__(self, tensor: torch.Tensor, done: _Event) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.done = done

    def wait(self) -> None:
        self.done.wait()
        self.tensor = None


class _Tape:
    """Writes down ops under tokens; the names come last, when it is known what the lines call them."""

    def __init__(self, units: float | Mapping[str, float]) -> None:
        self.units = units
        self.ops: list[ops.Op] = []
        self.given: list[ops.Op] = []  # memory that was there before
        self.current = DEFAULT
        self.names: dict[str, str] = {}  # token -> the variable
        self.kinds: dict[str, str] = {}  # token -> what it is called without a variable
        self.blocks: dict[int, str] = {}  # address of memory -> token
        self.last: tuple[Any, int, int, str] | None = (
            None  # frame, line, instruction and token of the last assignment
        )
        self.made: dict[tuple[Any, int], int] = {}  # streams and events of one line
        self.open = True

    # --- names ---

    def token(self, kind: str) -> str:
        """A new stream, event or tensor, called by the variable that the current line assigns it to."""
        token = f"#{len(self.kinds)}"
        self.kinds[token] = kind
        frame, targets = self.line()
        if kind in ("stream", "event"):
            targets = self.turn(frame, targets)
        elif self.last and self.last[:2] == (id(frame), frame.f_lineno) and self.last[2] < frame.f_lasti:
            self.names.pop(self.last[3], None)  # only the last operator of a line makes what is assigned
        if targets:
            self.names[token] = targets[0]
            self.last = (id(frame), frame.f_lineno, frame.f_lasti, token)
        return token

    def line(self) -> tuple[Any, list[str]]:
        """The frame of the reader's code that is running, and the variables that its line assigns."""
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename.startswith(NOT_THE_READERS):
            frame = frame.f_back
        found = ASSIGNED.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno))
        return frame, re.split(r"\s*,\s*", found[1]) if found else []

    def turn(self, frame: Any, targets: list[str]) -> list[str]:
        """The variables of a line that are left for the streams and events which it makes, in their order."""
        key = id(frame), frame.f_lineno
        turn = self.made[key] = self.made.get(key, -1) + 1
        return targets[turn:] if turn < len(targets) else targets

    def block(self, tensor: torch.Tensor, kind: str = "") -> str:
        """The token of a tensor's memory; memory that is new to us was allocated by `kind`, or before we began."""
        address = tensor.untyped_storage().data_ptr()
        if address not in self.blocks:
            self.blocks[address] = token = self.token(kind) if kind else f"#{len(self.kinds)}"
            self.kinds.setdefault(token, "given")
            size = max(1, tensor.untyped_storage().nbytes())
            (self.ops if kind else self.given).append(
                ops.Alloc(token, self.current if kind else DEFAULT, size)
            )
            weakref.finalize(tensor.untyped_storage(), self.freed, address, token)
        return self.blocks[address]

    def freed(self, address: int, token: str) -> None:
        if self.open:
            del self.blocks[address]
            self.ops.append(ops.Free(token))

    # --- what is written down ---

    def operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator, and write down the kernel and the memory that it stands for."""
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        written = {
            a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write
        }
        only = {a.name for a in func._schema.arguments if a.is_out}
        reads = [self.block(t) for name, value in given.items() if name not in only for t in _tensors(value)]
        out = func(*args, **kwargs)
        name = func.__name__.partition(".")[0]
        if name == "_local_scalar_dense":
            self.ops.append(ops.Synchronize("stream", self.current))
            return out
        changed = [t for argument in given if argument in written for t in _tensors(given[argument])]
        known = set(self.blocks)
        new = [t for t in _tensors(out) if t.untyped_storage().data_ptr() not in known]
        writes = [self.block(t, name) for t in new] + [self.block(t) for t in changed]
        if writes and not name.startswith(("empty", "new_empty")):
            self.kernel(name, reads, writes, self.current)
        return out

    def kernel(self, name: str, reads: list[str], writes: list[str], on: str, kind: str = "compute") -> None:
        units = self.units.get(name, 1.0) if isinstance(self.units, Mapping) else self.units
        self.ops.append(ops.Kernel(name, units, on, tuple(reads), tuple(writes), kind))

    def all_reduce(
        self, tensor: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False
    ) -> Any:
        """What ProcessGroupNCCL puts into the queues: its own stream waits for the current one, and the other way."""
        block = self.block(tensor)
        if not async_op:  # since torch 2.8 on the current stream
            self.kernel("all_reduce", [block], [block], self.current, "collective")
            return None
        self.kinds.setdefault(NCCL, NCCL)
        before, after = _Event(self), _Event(self)
        self.names |= {before.token: "pre", after.token: "post"}
        self.ops += [ops.Record(before.token, self.current), ops.Wait(before.token, NCCL)]
        self.kernel("all_reduce", [block], [block], NCCL, "collective")
        self.ops.append(ops.Record(after.token, NCCL))
        return _Work(tensor, after)

    @contextlib.contextmanager
    def standing_in(self, fn: Callable[..., Any]) -> Iterator[None]:
        """Put the stand-ins where torch's functions are, and where the module of `fn` has imported them by name."""

        class Stream(_Stream):  # classes, because torch asks isinstance
            def __init__(stream, *args: Any, **kwargs: Any) -> None:
                super().__init__(self, self.token("stream"))

        class Event(_Event):
            def __init__(event, *args: Any, **kwargs: Any) -> None:
                super().__init__(self)

        def current(device: Any = None) -> _Stream:
            self.turn(*self.line())
            return _Stream(self, self.current)

        def set_stream(on: _Stream) -> None:
            self.current = on.token

        def synchronize(device: Any = None) -> None:
            self.ops.append(ops.Synchronize("device"))

        def record_stream(tensor: torch.Tensor, on: _Stream) -> None:
            self.ops.append(ops.RecordStream(self.block(tensor), on.token))

        cuda, accelerator = torch.cuda, torch.accelerator
        stand_ins: list[tuple[Any, str, Any]] = [
            *((owner, "Stream", Stream) for owner in (torch, cuda)),
            *((owner, "Event", Event) for owner in (torch, cuda)),
            *((owner, "current_stream", current) for owner in (cuda, accelerator)),
            *((owner, "set_stream", set_stream) for owner in (cuda, accelerator)),
            *((owner, "synchronize", synchronize) for owner in (cuda, accelerator)),
            (cuda, "default_stream", lambda device=None: _Stream(self, DEFAULT)),
            (cuda, "stream", lambda on: on),
            (torch.Tensor, "record_stream", record_stream),
            (dist, "all_reduce", self.all_reduce),
        ]
        # imports Dynamo, as a dispatch mode does at its first operator, while torch's own classes are in their place
        torch.compiler.disable(lambda: None)
        imported = {id(getattr(owner, name)): stand_in for owner, name, stand_in in stand_ins}
        here = getattr(getattr(fn, "func", fn), "__globals__", {})  # of a partial: of its function
        named = {name: value for name, value in here.items() if id(value) in imported}
        with contextlib.ExitStack() as stack:
            stack.callback(here.update, named)
            here.update({name: imported[id(value)] for name, value in named.items()})
            for owner, name, stand_in in stand_ins:
                stack.enter_context(mock.patch.object(owner, name, stand_in))
            yield
        self.open = False

    # --- the program ---

    def program(self, name: str) -> Captured:
        """The program under the names that are known now."""
        said, used = {NCCL: NCCL}, {DEFAULT, NCCL}
        for token, kind in self.kinds.items():
            if token == NCCL:
                continue
            wanted, turn = self.names.get(token, kind), 1
            while (said_so := wanted if turn == 1 else f"{wanted} {turn}") in used:
                turn += 1
            used.add(said_so)
            said[token] = said_so
        streams = [said[t] for t, kind in self.kinds.items() if kind in ("stream", NCCL)]
        made = Captured(name, streams)
        for op in (*self.given, *self.ops):
            made.add(self._named(op, said))
        return made

    def _named(self, op: ops.Op, said: Mapping[str, str]) -> ops.Op:
        given = {f.name: getattr(op, f.name) for f in fields(op)}
        named = {
            key: tuple(said[t] for t in dict.fromkeys(value))
            if isinstance(value, tuple)
            else said.get(value, value)
            for key, value in given.items()
        }
        if isinstance(op, ops.Kernel) and op.writes:
            target = said[op.writes[0]]
            if op.kind != "compute":
                named["name"] = f"{op.name} {target}"
            elif op.writes[0] in self.names:
                named["name"] = f"{target}.{op.name}" if op.name.endswith("_") else f"{target} = {op.name}"
        return replace(op, **named)
