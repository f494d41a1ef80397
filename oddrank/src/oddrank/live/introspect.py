"""What a rank is doing, as its control thread sees it: its stack, what it waits in, and its last collectives.

Nothing here runs during a call unless the kernel asks. torch's flight recorder notes every collective of gloo and NCCL
anyway (`torch/csrc/distributed/c10d/FlightRecorder.hpp`), and the stack is read from another thread.
"""

from __future__ import annotations

import gc
import itertools
import linecache
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

from oddrank import places
from oddrank.live.messages import Message, note_messages, peer_of, under_way
from oddrank.live.stacks import hide, is_bottom, is_hidden, is_library, is_ours, place, spinning
from oddrank.torch_names import COMPILER, flight_record, group_members

Result = TypeVar("Result")

# what a checked process group notes by itself (see collective_check.py)
recorded: deque[Collective] | None = None
waiting = ""
# classes of modules by the group and the bytes of a bucket in which DDP sends their gradients; who knows them fills it
owners: dict[tuple[str, int], str] = {}

KEPT = 256  # collectives that the flight recorder keeps; its default of 2,000 takes 20 ms to read
SHOWN = 4  # collectives in an error message
IDLE = 0.2  # a main thread that used more than this share of a core computes
MOMENT_S = 0.01  # an error asks for its share of this time


hide(__file__)

_DISTRIBUTED = f"{os.sep}torch{os.sep}distributed{os.sep}"
_C10D = f"{_DISTRIBUTED}distributed_c10d.py"
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "short": 2}
_BYTES |= {"byte": 1, "char": 1, "bool": 1, "complexfloat": 8, "complexdouble": 16}
_MESSAGES = {"send": "to", "recv": "from"}
# collectives whose tensors may differ between ranks: by the splits, or because only the root has some
_UNEVEN = ("all_to_all", "alltoall", "scatter", "gather", "barrier")
_SLEEPS = {"x86_64": ("35", "230"), "aarch64": ("101", "115")}.get(os.uname().machine, ())


@dataclass(frozen=True)
class Collective:
    """A collective that a rank has called.

    Attributes:
        group: Name of its process group.
        number: Its number in that group.
        op: Its name.
        shapes: The shapes of its tensors.
        dtypes: Their dtypes.
        place: The reader's line that called it.
        ended: Whether it has ended.
        between_two: Whether it is a message, in which only two ranks of the group take part.
        ranks: The members of the group; empty where they are not known.
        called: The function of `torch.distributed` that was called, where it has another name: gloo sends an
            all-reduce for `reduce_scatter_tensor`.
        time_ns: The `time.time_ns()` of the call; 0 where it is not known.
        owner: The module whose gradients it carries, where a process has several DDP modules; '' where it is not known.
    """

    group: str
    number: int
    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    place: str
    ended: bool
    between_two: bool = False
    ranks: tuple[int, ...] = ()
    called: str = ""
    time_ns: int = field(default=0, compare=False)
    owner: str = field(default="", compare=False)

    @property
    def signature(self) -> tuple[Any, ...]:
        """What has to be the same on all ranks."""
        return (self.op, self.shapes, self.dtypes) if self.even else (self.op,)

    @property
    def even(self) -> bool:
        """Whether its tensors have to be alike on all ranks."""
        return not self.op.lstrip("_").startswith(_UNEVEN)

    @property
    def nbytes(self) -> int:
        """The bytes of its input tensors on this rank; -1 where a dtype is not known."""
        wide = [1 if dtype.startswith("float8") else _BYTES.get(dtype, 0) for dtype in self.dtypes]
        known = all(wide) and len(wide) == len(self.shapes)
        return sum(w * math.prod(shape) for w, shape in zip(wide, self.shapes, strict=True)) if known else -1

    def describe(self) -> str:
        """Return such as `all_reduce (2, 3) float32 at In [5]:3`."""
        tensors = [f"{shape} {dtype}" for shape, dtype in zip(self.shapes, self.dtypes, strict=False)]
        whose = [f"of the gradients of {self.owner}"] if self.owner else []
        said = " ".join([self.called or self.op, *tensors, *whose])
        return said + (f" at {self.place}" if self.place else "")

    def owned(self) -> Collective:
        """Return it with its owner, where `owners` has one: DDP calls its all-reduces from C++."""
        if self.called or not self.op.startswith("all_reduce") or len(self.shapes) != 1:
            return self
        return replace(self, owner=owners.get((self.group, self.nbytes), ""))


@dataclass(frozen=True)
class Snapshot:
    """A rank's answer to "where".

    Attributes:
        frames: Its stack, outermost frame first: (place, source line, whether it is library code).
        waits: What it waits in, or ''.
        collectives: Its last collectives; None if nothing records them.
        compiling: Whether Dynamo is at work.
        message: The message that it waits in: 'send' or 'recv', and the other rank.
        failure: How the call has failed, where the rank has yet to say so (`worker.failing`).
    """

    frames: list[tuple[str, str, bool]]
    waits: str
    collectives: list[Collective] | None
    compiling: bool = False
    message: Message | None = None
    failure: Any = None


@dataclass(frozen=True)
class Activity:
    """A rank's answer to "look".

    Attributes:
        progress: A value that changes when the rank makes progress.
        waits: The collective or store wait that it stands in, or ''.
        place: The reader's innermost line.
        compiling: Whether Dynamo is at work.
        message: The message that it waits in: 'send' or 'recv', and the other rank.
    """

    progress: tuple[Any, ...]
    waits: str
    place: str
    compiling: bool
    message: Message | None = None

    def describe(self) -> str:
        """Return such as `waiting in all_reduce at In [5]:3 (step)`.

        >>> Activity((), "", "In [5]:3 (step)", True).describe()
        'compiling at In [5]:3 (step)'
        """
        doing = f"waiting in {self.waits}" if self.waits else "compiling" if self.compiling else "running"
        return f"{doing} at {self.place}" if self.place else doing


def prepare() -> None:
    """Limit the flight recorder, and note waits in a store and messages; called in a rank before its group exists."""
    import torch.distributed as dist

    note_messages()

    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(KEPT))
    # not Store: one written in Python would call itself
    for kind in (dist.TCPStore, dist.PrefixStore, dist.FileStore):
        for name in ("wait", "get", "multi_get"):
            setattr(kind, name, _noted(getattr(dist.Store, name)))


def _noted(method: Callable[..., Any]) -> Callable[..., Any]:
    def store_wait(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    store_wait.__doc__ = method.__doc__
    return store_wait


_STORE_WAIT = _noted(len).__code__


def aside(work: Callable[[], Result]) -> Result:
    """Do work of one's own in the midst of a program: where the rank stands is then the line that led to it.

    >>> aside(lambda: 2)
    2
    """
    return work()


class Step(NamedTuple):
    """A frame of a stack, copied.

    Attributes:
        code: Its code.
        line: The line that it is at.
        at: The instruction that it is at.
    """

    code: CodeType
    line: int
    at: int


class Inspector:
    """Looks at the main thread from the control thread.

    Args:
        busy: Says whether a call is running.
    """

    def __init__(self, busy: Callable[[], bool]):
        self.busy = busy
        self.thread = threading.main_thread()
        self.seen = (time.monotonic(), self._used())

    def look(self) -> Activity:
        """Answer "look": what the rank is doing."""
        return self._activity(*self._stack())

    def _activity(self, stack: list[Step], turn: int, message: Message | None) -> Activity:
        before, self.seen = self.seen, (time.monotonic(), self._used())
        used = (self.seen[1] - before[1]) / max(self.seen[0] - before[0], 1e-6)
        readers = next((step for step in stack if _readers(step.code.co_filename)), None)
        compiling = any(step.code.co_filename.endswith(COMPILER) for step in stack)
        # the spin of a collective over shared memory moves, and is no progress
        moves = tuple((id(step.code), step.at) for step in stack if not spinning(step.code.co_filename))
        noted = _record(stacks=False)
        pending = unfinished(noted)
        numbers = noted[-1]["record_id"] if noted else 0, len(pending)
        if recorded:
            turn = recorded[-1].number
        asked = next((s.code.co_name for s in stack if _asks(s.code.co_filename, s.code.co_name)), "")
        code = stack[0].code if stack else None
        waits = self._waits(code, pending, used, compiling, asked)
        if (
            code
            and message is None
            and not pending
            and used <= IDLE
            and _may_wait(code, waits)
            and not self._sleeps()
        ):
            message = next(iter(under_way()), None)
            waits = message[0] if message else waits
        if message is not None and waits in _MESSAGES:
            waits += f" {_MESSAGES[waits]} rank {message[1]}"
        at = _place(readers) if readers else ""
        return Activity((moves, turn, numbers), waits, at, compiling, message if waits else None)

    def _stack(self) -> tuple[list[Step], int, Message | None]:
        """Copy the main thread's stack, innermost frame first, the turn of a collective over shared memory in it, and
        the message that it sends or receives.

        No other thread runs meanwhile. A frame that is held while its thread runs on keeps the function's variables
        alive; Dynamo's guard of the inference mode, kept like this, leaves the grad mode changed. A garbage collection
        lets the thread run on in the midst of a walk, and CPython 3.11 then follows freed frames.
        """
        if not self.busy():
            return [], 0, None
        stack, turn, message = [], 0, None
        time.sleep(0)  # the interpreter lock, taken anew, is this thread's for 5 ms
        collects = gc.isenabled()
        gc.disable()
        try:
            frame = sys._current_frames().get(_ident(self.thread))
            while frame is not None:
                stack.append(Step(frame.f_code, frame.f_lineno, frame.f_lasti))
                if spins := spinning(frame.f_code.co_filename):
                    turn = found if (found := spins.turn(frame.f_locals)) is not None else turn
                elif frame.f_code.co_name in _MESSAGES and frame.f_code.co_filename.endswith(_C10D):
                    message = _message(frame.f_code.co_name, frame.f_locals)
                frame = frame.f_back
        finally:
            if collects:
                gc.enable()
        return stack, turn, message

    def _used(self) -> float:
        if hasattr(time, "pthread_getcpuclockid"):
            return time.clock_gettime(time.pthread_getcpuclockid(_ident(self.thread)))
        return time.process_time()  # macOS: with the other threads' time, so some waits are taken for work

    def where(self) -> Snapshot:
        """Answer "where": the stack with its source lines, what it waits in, and its collectives."""
        self.seen = (time.monotonic(), self._used())  # what it computed before it came here does not count
        time.sleep(MOMENT_S)
        stack, turn, message = self._stack()
        now = self._activity(stack, turn, message)
        return Snapshot(_described(stack), now.waits, collectives(), now.compiling, now.message)

    def _waits(
        self, code: CodeType | None, pending: list[dict[str, Any]], used: float, compiling: bool, asked: str
    ) -> str:
        if code is None:
            return ""
        if spins := spinning(code.co_filename):
            return spins.waits()
        on_gpu = "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized()
        if waiting:
            return waiting
        if used > IDLE and not on_gpu:  # waiting for a GPU spins
            return ""
        if code is _STORE_WAIT:
            return "a store"
        if pending and not self._sleeps():
            return asked or _name(pending[0]["profiling_name"])
        if _DISTRIBUTED in code.co_filename and not compiling:  # else it stands in for the collective
            return code.co_name
        return ""

    def _sleeps(self) -> bool:
        # the main thread's number is the process'; threading still has that of the process this was forked from
        try:
            with open(f"/proc/self/task/{os.getpid()}/syscall") as file:
                return file.read().split()[0] in _SLEEPS
        except (OSError, IndexError):
            return False


def _may_wait(code: CodeType, waits: str) -> bool:
    """Whether a function may wait for a message: such a wait has no frame of its own, a lock's is in Python's code."""
    pythons = places.label(code.co_filename).startswith("python/")
    return waits in ("", code.co_name) and code.co_name not in _MESSAGES and not pythons


def _message(name: str, values: Mapping[str, Any]) -> Message | None:
    """The message of a call of `dist.send` or `dist.recv`, from its variables; None where the peer is not known."""
    whole, inside = ("dst", "group_dst") if name == "send" else ("src", "group_src")
    peer, group = values.get(whole), values.get("group")
    if peer is None and (number := values.get(inside)) is not None and group is not None:
        peer = peer_of(group, number)
    return None if peer is None else (name, int(peer))


def _ident(thread: threading.Thread) -> int:
    assert thread.ident is not None
    return thread.ident


def _described(stack: list[Step]) -> list[tuple[str, str, bool]]:
    """Return a stack, outermost frame first: (place, source line, whether it is library code)."""
    at = next((i for i, step in enumerate(stack) if step.code is aside.__code__), -1)
    if at >= 0:
        stack = list(itertools.dropwhile(lambda step: is_ours(step.code.co_filename), stack[at:]))
    found = []
    for number, step in enumerate(stack):
        file = step.code.co_filename
        if number and is_bottom(file):
            break
        if not is_hidden(file):
            found.append((_place(step), linecache.getline(file, step.line).strip(), is_library(file)))
    return found[::-1]


def _place(step: Step) -> str:
    return place(step.code.co_filename, step.line, step.code.co_name)


def unfinished(noted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of a flight record that have not ended.

    NCCL does not mark the parts of a coalesced operation as ended; they have ended when the entry of their number has.

    Args:
        noted: The entries, as `torch_names.flight_record` returns them.
    """

    def number(entry: dict[str, Any]) -> tuple[Any, ...]:
        return entry["process_group"][0], *(
            entry.get(key) for key in ("is_p2p", "collective_seq_id", "p2p_seq_id")
        )

    ended = {number(entry) for entry in noted if entry["retired"]}
    return [entry for entry in noted if not entry["retired"] and number(entry) not in ended]


def kept() -> int:
    """How many collectives torch's flight recorder keeps in this process."""
    return int(os.environ.get("TORCH_FR_BUFFER_SIZE", KEPT))


def collectives(since_ns: int = 0) -> list[Collective] | None:
    """Return the last collectives of this rank, oldest first; None over shared memory, which keeps no record.

    Args:
        since_ns: Leave out those that were called before this `time.time_ns()`.
    """
    if recorded is not None:
        return [one.owned() for one in recorded]
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or hasattr(distributed.group.WORLD, "where"):
        return None
    found, members = [], group_members()
    for entry in _record(stacks=True):
        if entry.get("time_created_ns", since_ns) < since_ns:
            continue
        at = next((f for f in entry.get("frames", ()) if _readers(f["filename"])), None)
        found.append(
            Collective(
                entry["process_group"][0],
                entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"],
                _name(entry["profiling_name"]),
                tuple(tuple(shape) for shape in entry["input_sizes"]),
                tuple(_dtype(name) for name in entry["input_dtypes"]),
                place(at["filename"], at["line"], at["name"]) if at else "",
                bool(entry["retired"]),
                bool(entry["is_p2p"]),
                members.get(entry["process_group"][0], ()),
                "" if entry["is_p2p"] else _called(entry.get("frames", ())),
                entry.get("time_created_ns", 0),
            ).owned()
        )
    return found


def _readers(filename: str) -> bool:
    return not is_hidden(filename) and not is_library(filename)


def _called(frames: Iterable[dict[str, Any]]) -> str:
    return next((frame["name"] for frame in frames if _asks(frame["filename"], frame["name"])), "")


def _asks(filename: str, name: str) -> bool:
    """Whether a frame is a function of `torch.distributed` that a program calls."""
    return filename.endswith(_C10D) and hasattr(sys.modules["torch.distributed"], name)


def _name(profiling_name: str) -> str:
    return profiling_name.rpartition(":")[2]


def _dtype(name: str) -> str:
    known = {"Float": "float32", "Double": "float64", "Half": "float16", "Int": "int32", "Long": "int64"}
    return known.get(name, name.lower())


def _record(stacks: bool) -> list[dict[str, Any]]:
    if "torch.distributed" not in sys.modules:
        return []
    return flight_record(stacks)


def codes(*modules: ModuleType) -> list[CodeType]:
    """Return the code of all functions that modules define, methods and nested functions included."""
    files = {module.__file__ for module in modules}
    found: dict[CodeType, None] = {}

    def add(code: CodeType) -> None:
        if code.co_filename in files and code not in found:
            found[code] = None
            for constant in code.co_consts:
                if isinstance(constant, CodeType):
                    add(constant)

    members = [member for module in modules for member in vars(module).values()]
    members += [m for cls in members if isinstance(cls, type) for m in vars(cls).values()]
    for member in members:
        member = getattr(member, "__wrapped__", member)
        member = member.fget if isinstance(member, property) else member
        for function in (member, getattr(member, "__func__", None)):
            if isinstance(function, FunctionType):
                add(function.__code__)
    return list(found)
