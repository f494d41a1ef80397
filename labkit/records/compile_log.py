"""A log of every compile in this process, filled from torch's structured trace.

Torch writes the trace only while someone listens, and only while compiling: calls of compiled code cost nothing more.
Compiling costs what it takes to print the graphs and guards, about 10 ms for each small graph.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from labkit import torch_compat

__all__ = ["Compile", "CompileLog", "compile_id", "install"]

MOST_COMPILES = 5000  # remembered in a process; the oldest go first
MOST_TEXT = 64 << 20  # characters of graph code kept; the oldest lose theirs, names and counts stay

_COLLECTIVE_CALL = re.compile(r"torch\.ops\._c10d_functional(?:_autograd)?\.(?!wait_tensor|_wrap)\w+")
# what may differ between ranks that run the same graph: the device, and the name of the group they belong to
_RANK_DEVICE = re.compile(r"cuda:\d+|device\(type='cuda', index=\d+\)")
_GROUP = re.compile(r"(torch\.ops\._c10d_functional\S*\(.*), '[^']*'\)")
_COMMENT = re.compile(r"#.*")
_STAGES = {
    "dynamo_cpp_guards_str": "guards",
    "aot_joint_graph": "aot_joint",
    "aot_forward_graph": "aot_forward",
    "aot_inference_graph": "aot_forward",
    "aot_backward_graph": "aot_backward",
    "inductor_output_code": "inductor",
}
_BACKWARD_CODE = re.compile(r"^# AOT ID: \['\d+_backward'\]", re.MULTILINE)


@dataclass
class Compile:
    """What the trace said about one compile of one frame. `epoch` counts Dynamo resets, after which ids are reused.

    Times are seconds of `time.monotonic()`.
    """

    epoch: int
    id: str
    started: float
    ready: float | None = None  # when its code was there, before the first call of it
    begun: bool = False  # tracing started; a failed guard is reported before that
    finished: bool = False
    co_name: str = ""
    filename: str = ""
    line: int = 0
    has_code: bool = False  # False: the frame was given up, or compiling failed
    graph: str = ""
    digest: str = ""  # of the graph, the same on every rank that has the same one
    ops: int = 0
    collectives: int = 0
    pieces: int = 0  # what DDPOptimizer cut the graph into for the backend; 0: it did not
    break_text: str = ""
    failure: str = ""
    error: str = ""  # the type of the exception that ended it
    failed_at: tuple[str, int] = (
        "",
        0,
    )  # the file and line where Dynamo failed; a backend's failure has none
    reasons: list[str] = field(default_factory=list)  # failed guards, newest cached code first
    seconds: float | None = None
    backend_s: float | None = None
    backward_s: float | None = None
    cached: bool | None = None
    attempt: int = 0
    stages: dict[str, str] = field(default_factory=dict)  # what came after the graph, where it is kept
    before: CodeType | None = None  # the bytecode that Dynamo read, and the one it put in its place
    after: CodeType | None = None

    @property
    def broke(self) -> bool:
        """Whether running this code ends in a graph break."""
        return self.has_code and bool(self.break_text)

    @property
    def backend_graphs(self) -> int:
        """How many graphs the backend was given for this one."""
        return self.pieces or int(self.ops > 0)

    @property
    def skipped(self) -> bool:
        """Whether the frame was given up for good because of a break, and runs eagerly."""
        given_up = bool(self.break_text) or "recompile limit" in self.failure
        return self.finished and not self.has_code and given_up and not self.failed

    @property
    def failed(self) -> bool:
        """Whether Dynamo or the backend raised an error, and the frame was not given up instead."""
        quiet = self.error in ("", "SkipFrame", "Unsupported") or "recompile limit" in self.failure
        return self.finished and not self.has_code and not quiet

    def joined(self, *names: str) -> str:
        """Return the text of some stages, one after the other."""
        return "\n\n".join(self.stages[name] for name in names if self.stages.get(name))


class CompileLog(logging.Handler):
    """A logging handler that collects compiles from torch's structured trace. It never raises into a compile."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.compiles: OrderedDict[tuple[int, str], Compile] = OrderedDict()
        self.epoch = 0
        self.keep_stages = False
        # called when a compile begins, when its caches answer, and when it ends
        self.listeners: list[Callable[[Compile], None]] = []
        self.error = ""  # the last thing this could not read, for a record's notes
        self._text = 0
        self._last_frame = -1
        self._made: dict[
            int, tuple[weakref.ref[CodeType], str]
        ] = {}  # code that Dynamo made, and its compile's id
        self.sees_code = False  # for the one that is installed
        self._unhook: Callable[[], None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._read(record.metadata, record.payload, time.monotonic())  # type: ignore[attr-defined]
        except Exception as error:  # a reader of traces must not break what it reads
            self.error = f"{type(error).__name__}: {error}"

    def _read(self, said: dict[str, Any], text: str | None, at: float) -> None:
        name = compile_id(said)
        if not name:
            return
        artifact = said["artifact"]["name"] if "artifact" in said else ""
        if "dynamo_start" in said or artifact == "recompile_reasons":
            self._begin(name, said, at)
        compile_ = self.compiles.get((self.epoch, name))
        if compile_ is None:
            return
        if "dynamo_start" in said:
            if (
                self.sees_code and self._unhook is None
            ):  # not before: it needs Dynamo, which takes seconds to import
                self._unhook = torch_compat.bytecode_hook(self._bytecode)
            compile_.begun = True
            frame = (said["dynamo_start"].get("stack") or [{}])[-1]
            compile_.co_name, compile_.line = frame.get("name", ""), frame.get("line", 0)
            compile_.filename = torch_compat.traced_file(frame.get("filename", -1))
            self._tell(compile_)
        elif "dynamo_output_graph" in said:
            self._graph(compile_, text or "")
        elif artifact == "dynamo_graph_break_reason":
            # what follows the reader's stack is Dynamo's own, and long
            compile_.break_text = (text or "").split("\nTraceback (most recent call last)")[0]
            self._kept(len(compile_.break_text))
        elif artifact == "recompile_reasons":
            compile_.reasons = _reasons(text or "")
        elif artifact.startswith(("fx_graph_cache_", "aotautograd_cache_")):
            known = compile_.cached
            if artifact.endswith("_hit"):
                compile_.cached = True
            elif artifact.endswith(("_miss", "_bypass")) and known is None:
                compile_.cached = False
            if compile_.cached != known:
                self._tell(compile_)
        elif "optimize_ddp_split_child" in said:
            compile_.pieces += said["optimize_ddp_split_child"]["name"].startswith("submod_")
        elif "compilation_metrics" in said:
            self._finish(compile_, said["compilation_metrics"])
            self._tell(compile_)
        elif "bwd_compilation_metrics" in said:
            duration = said["bwd_compilation_metrics"].get("duration_us")
            compile_.backward_s = duration / 1e6 if duration else None
        elif self.keep_stages and (stage := next((s for key, s in _STAGES.items() if key in said), None)):
            self._stage(compile_, stage, text or "", said.get("attempt") or 0)

    def _tell(self, compile_: Compile) -> None:
        for listener in self.listeners:
            listener(compile_)

    def _begin(self, name: str, said: dict[str, Any], at: float) -> None:
        known = self.compiles.get((self.epoch, name))
        if known is not None and not known.finished and not (known.begun and "dynamo_start" in said):
            return
        frame = said.get("frame_id")
        number = frame if isinstance(frame, int) else -1
        # Dynamo numbers frames upwards until it is reset, so an id seen before starts a new life of the process
        if known is not None or (name == "0/0" and self._last_frame >= 0):
            self.epoch += 1
            self._last_frame = -1
        self._last_frame = max(self._last_frame, number)
        # a compile that ends at the recompile limit never says which function it is of; its frame's first one did
        first = self.compiles.get((self.epoch, f"{name.rpartition('/')[0]}/0"))
        known_by = (first.co_name, first.filename, first.line) if first else ("", "", 0)
        self.compiles[self.epoch, name] = made = Compile(self.epoch, name, at)
        made.co_name, made.filename, made.line = known_by
        while len(self.compiles) > MOST_COMPILES:
            _, old = self.compiles.popitem(last=False)
            self._text -= _size(old)

    def _graph(self, compile_: Compile, code: str) -> None:
        self._text -= len(compile_.graph)
        compile_.graph, compile_.pieces = code, 0
        alike = _GROUP.sub(r"\1)", _RANK_DEVICE.sub("cuda", _COMMENT.sub("", code)))
        compile_.digest = hashlib.md5(alike.encode(), usedforsecurity=False).hexdigest()[:12]
        compile_.collectives = len(_COLLECTIVE_CALL.findall(alike))
        self._kept(len(code))

    def _stage(self, compile_: Compile, stage: str, text: str, attempt: int) -> None:
        if attempt > compile_.attempt:  # tracing started over: what an earlier attempt left is not what runs
            compile_.attempt = attempt
            self._text -= sum(map(len, compile_.stages.values()))
            compile_.stages.clear()
        if stage == "inductor" and _BACKWARD_CODE.search(text[:200]):
            stage = "inductor_backward"
        # one graph of Dynamo may become several of AOTAutograd (DDP cuts it into buckets)
        compile_.stages[stage] = "\n\n".join(filter(None, [compile_.stages.get(stage), text]))
        self._kept(len(text))

    def _bytecode(self, before: CodeType, after: CodeType) -> None:
        """What Dynamo calls with the bytecode it read and the one it made of it."""
        try:
            name = torch_compat.current_compile_id()
            compile_ = self.compiles.get((self.epoch, name))
            if compile_ is None:
                return
            compile_.ready = time.monotonic()
            made, key = self._made, id(after)
            made[key] = (weakref.ref(after, lambda _: made.pop(key, None)), name)
            if self.keep_stages:
                compile_.before, compile_.after = before, after
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def _finish(self, compile_: Compile, metrics: dict[str, Any]) -> None:
        compile_.finished = True
        compile_.has_code = bool(metrics.get("has_guarded_code"))
        compile_.co_name = metrics.get("co_name") or compile_.co_name
        compile_.filename = metrics.get("co_filename") or compile_.filename
        compile_.line = metrics.get("co_firstlineno") or compile_.line
        compile_.ops = metrics.get("graph_op_count") or 0
        compile_.seconds = metrics.get("entire_frame_compile_time_s")
        compile_.backend_s = metrics.get("backend_compile_time_s")
        compile_.failure = str(metrics.get("fail_reason") or "")
        compile_.error = str(metrics.get("fail_type") or "")
        compile_.failed_at = (
            metrics.get("fail_user_frame_filename") or "",
            metrics.get("fail_user_frame_lineno") or 0,
        )

    def _kept(self, length: int) -> None:
        self._text += length
        if self._text <= MOST_TEXT:
            return
        for old in list(self.compiles.values())[:-1]:
            self._text -= _size(old)
            old.graph = ""
            old.stages.clear()
            self._text += _size(old)
            if self._text <= MOST_TEXT:
                return

    def known(self) -> list[Compile]:
        """Return every compile in the log, oldest first."""
        self.acquire()
        try:
            return list(self.compiles.values())
        finally:
            self.release()

    def id_of(self, code: CodeType) -> str:
        """Return the id of the compile that made some code; '' where it was made before the log began."""
        made, name = self._made.get(id(code), (None, ""))
        return name if made is not None and made() is code else torch_compat.compile_id_of(code)

    def alive(self) -> int:
        """Return the current epoch: one more than the last one seen where Dynamo was reset since."""
        frames = torch_compat.dynamo_frames_seen()
        reset = frames is not None and self._last_frame >= frames
        return self.epoch + 1 if reset else self.epoch


def compile_id(said: dict[str, Any]) -> str:
    """Return the compile id of a trace record, as Dynamo writes it: '1/0', or '!0/1/0' under compiled autograd.

    >>> compile_id({"frame_id": 1, "frame_compile_id": 0, "attempt": 1})
    '1/0'
    """
    parts = [said.get("frame_id"), said.get("frame_compile_id")]
    frame = "/".join(str(part) for part in parts if part is not None)
    autograd = said.get("compiled_autograd_id")
    return frame if autograd is None else f"!{autograd}/{frame}".rstrip("/")


def _reasons(text: str) -> list[str]:
    """Several failed guards come as a JSON list, a single one as it is."""
    if text.startswith("["):
        try:
            return [str(reason) for reason in json.loads(text)]
        except ValueError:
            pass
    return [text] if text else []


def _size(compile_: Compile) -> int:
    return len(compile_.graph) + len(compile_.break_text) + sum(map(len, compile_.stages.values()))


_log: CompileLog | None = None
_lock = threading.Lock()


def install() -> CompileLog:
    """Start to log this process's compiles until it ends, and return the log. A second call starts nothing.

    Ranks call this when they start, so that `labkit.record()` knows the graphs of code that was compiled before it
    began. It keeps the last 5000 compiles and 64 million characters of their code. TORCH_TRACE and its files are left
    as they are. Cost: nothing when calling compiled code; when compiling, about 10 ms a graph.

    >>> install() is install()
    True
    """
    global _log
    with _lock:
        if _log is None:
            _log = CompileLog()
            _log.sees_code = True
            # a backward compiles where a compiled function runs, and there Dynamo would compile what listens to it
            heard = CompileLog.emit.__code__, CompileLog._bytecode.__code__
            torch_compat.hide_from_dynamo(*heard, calls=True)
        logger = torch_compat.trace_logger()
        if _log not in logger.handlers:
            # first in line: torch's own handler removes itself from the list on its first record, which would make
            # the logger skip the handler after it
            logger.handlers.insert(0, _log)
            if logger.level == logging.NOTSET or logger.level > logging.DEBUG:
                logger.setLevel(logging.DEBUG)
            logger.propagate = False
        return _log
