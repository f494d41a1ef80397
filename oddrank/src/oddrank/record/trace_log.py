"""The entries of torch's structured trace that the tables are made of, from a file or from the running process."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["ARTIFACTS", "KINDS", "MOST_BYTES", "Entry", "compile_id", "in_file", "of_record"]

MOST_BYTES = 1 << 30  # of a file that are read
MOST_HEAD = 1 << 20  # of the JSON of one entry; a stack of a thousand frames takes a tenth of it
MOST_BODY = 64 << 20  # of the text of one entry: a graph of a hundred thousand operators is 20 MB
MOST_NUMBER = 1 << 31  # an id, a rank or an attempt is below it

_BLOCK = 4 << 20  # bytes that are read at once

KINDS = {
    "create_symbol",
    "guard_added",
    "guard_added_fast",
    "aot_backward_graph",
    "aot_forward_graph",
    "aot_inference_graph",
    "aot_joint_graph",
    "artifact",
    "bwd_compilation_metrics",
    "compilation_metrics",
    "dynamo_cpp_guards_str",
    "dynamo_output_graph",
    "dynamo_start",
    "inductor_output_code",
    "optimize_ddp_split_child",
    "optimize_ddp_split_graph",
    "str",
}
KINDS_IN_FILE = KINDS - {"aot_joint_graph", "dynamo_cpp_guards_str"}  # no table is made of these
ARTIFACTS = re.compile(
    r"dynamo_graph_break_reason|recompile_reasons|torch_version|inductor_provenance_tracking_kernel_stack_traces"
    r"|(?:fx_graph|aotautograd)_cache_(?:hit|miss|bypass)"
)
# of the 30 kB of settings that come with each compile, these are wanted
METRICS = (
    "backend_compile_time_s",
    "co_filename",
    "co_firstlineno",
    "co_name",
    "duration_us",
    "entire_frame_compile_time_s",
    "fail_reason",
    "fail_type",
    "fail_user_frame_filename",
    "fail_user_frame_lineno",
    "graph_op_count",
    "guard_count",
    "has_guarded_code",
)
IDS = ("frame_id", "frame_compile_id", "compiled_autograd_id", "attempt", "rank")

_NUMBER = re.compile(rb"\d{1,10}(?!\d)")
_HEAD = re.compile(rb'V\d{4} [^\]\n]*\] (\{"(\w+)")')
_ARTIFACT = re.compile(rb'\{"artifact": \{"name": "([^"]+)"')
_METRIC = re.compile(rb'"(?:%s)": (?:"(?:[^"\\]|\\.)*"|[^,}]+)' % "|".join(METRICS).encode())


@dataclass(slots=True)
class Entry:
    """One entry.

    Args:
        kind: Torch's name of it; of an artifact, the artifact's own.
        said: What torch says under that name.
        id: The compile it belongs to, as in `Compile.id`; '' for none.
        attempt: How often the compile began anew before.
        rank: The rank, where the entry says it.
        text: Gives the text that follows.
        hash: Of that text, as torch wrote it; '' where it has none.
        size: Of that text: characters, or bytes in a file.
    """

    kind: str
    said: Any
    id: str = ""
    attempt: int = 0
    rank: int | None = None
    text: Callable[[], str] = lambda: ""
    hash: str = ""
    size: int = 0


def compile_id(head: dict[str, Any]) -> str:
    """The compile that an entry belongs to, as Dynamo writes it; '' for none.

    Args:
        head: The entry's first line.

    >>> compile_id({"frame_id": 1, "frame_compile_id": 0, "attempt": 1})
    '1/0'
    >>> compile_id({"compiled_autograd_id": 2, "frame_id": 1, "frame_compile_id": 0}), compile_id({})
    ('!2/1/0', '')
    """
    parts = [head.get("frame_id"), head.get("frame_compile_id")]
    frame = "/".join(str(part) for part in parts if part is not None)
    autograd = head.get("compiled_autograd_id")
    return frame if autograd is None else f"!{autograd}/{frame}".rstrip("/")


def of_record(head: dict[str, Any], text: str | None) -> Entry | None:
    """The entry of one record of torch's trace logger; None for one that the tables do not need.

    Args:
        head: Its metadata.
        text: Its payload.
    """
    kind = next((name for name in head if name in KINDS), "")
    if kind == "artifact":
        kind = str(head["artifact"].get("name"))
        if not ARTIFACTS.fullmatch(kind):
            return None
        said = head["artifact"]
    elif kind:
        said = head[kind]
    else:
        return None
    hashed = str(head.get("has_payload") or "")
    attempt, rank = head.get("attempt") or 0, head.get("rank")
    return Entry(kind, said, compile_id(head), attempt, rank, lambda: text or "", hashed, len(text or ""))


def in_file(path: str | os.PathLike[str], note: Callable[[str], None] = lambda text: None) -> Iterator[Entry]:
    """Read the entries of one file of a trace, in order. It is data from outside: sizes are limited, nothing is run.

    Args:
        path: The file, as TORCH_TRACE or `tlparse` has it.
        note: Called with a sentence about what was left out.

    Yields:
        The entries; one that cannot be read is left out, and costs itself only.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > MOST_BYTES:
            note(f"{Path(path).name} has {size >> 20} MB: the first {MOST_BYTES >> 20} were read")
        left_out = 0
        for data, start, stop in _spans(file):
            try:
                entry = _entry(data, start, stop)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
                left_out += 1
                continue
            if entry is not None:
                yield entry
        if left_out:
            note(f"{Path(path).name}: {left_out} malformed entr{'ies' if left_out > 1 else 'y'} left out")


def _spans(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """The entries, each as a piece of what was read: an entry begins a line with V, and its text is indented.

    Of one that is too long the beginning is given.
    """
    held, left, skips = b"", MOST_BYTES, False
    while left > 0 and (block := file.read(min(_BLOCK, left))):
        left -= len(block)
        seen = max(len(held) - 1, 0)  # there is no beginning of an entry before it
        held += block
        at = 0
        while (stop := held.find(b"\nV", seen)) >= 0:
            if not skips:
                yield held, at, stop
            skips, at, seen = False, stop + 1, stop + 1
        held = held[at:]
        if len(held) > MOST_HEAD + MOST_BODY:
            if not skips:
                yield held, 0, len(held)
            skips = True
        if skips:
            held = held[-1:]
    if held and not skips:
        yield held, 0, len(held)


def _entry(data: bytes, start: int, stop: int) -> Entry | None:
    found = _HEAD.match(data, start, stop)
    if found is None or (kind := found[2].decode()) not in KINDS_IN_FILE:
        return None
    line = data.find(b"\n", start, stop)
    line = stop if line < 0 else line
    begin = found.start(1)
    if kind == "artifact":
        named = _ARTIFACT.match(data, begin, line)
        if named is None or not ARTIFACTS.fullmatch(named[1].decode()):
            return None
        kind = named[1].decode()
    if line - begin > MOST_HEAD or stop - line > MOST_BODY:
        raise ValueError("too long")
    if kind.endswith("compilation_metrics"):
        head = _metrics(data, begin, line)
        ids = _ids(head)
        return Entry(kind, head, compile_id(ids), ids.get("attempt", 0), ids.get("rank"))
    head = json.loads(data[begin:line].decode())
    said, ids = head["artifact" if "artifact" in head else kind], _ids(head)
    body = data[line + 1 : stop]
    hashed = str(head.get("has_payload") or "")
    if hashed:  # two texts of one hash are two: this one is of this process, and cannot be foreseen
        hashed = f"{hashed} {hash(body)}"

    def text() -> str:
        return body.decode("utf-8", "replace").replace("\n\t", "\n").removeprefix("\t")

    attempt, rank = ids.get("attempt", 0), ids.get("rank")
    return Entry(kind, said, compile_id(ids), attempt, rank, text, hashed, len(body))


def _ids(head: dict[str, Any]) -> dict[str, int]:
    found = {name: head[name] for name in IDS if type(head.get(name)) is int}
    return {name: number for name, number in found.items() if 0 <= number < MOST_NUMBER}


def _metrics(data: bytes, start: int, stop: int) -> dict[str, Any]:
    """What is wanted of a compile's metrics, without decoding all of its settings."""
    if not data.endswith(b"}", start, stop):
        raise ValueError("cut off")
    pairs = b",".join(found[0] for found in _METRIC.finditer(data, start, stop))
    head = json.loads(b"{" + pairs + b"}")
    for name in IDS:
        at = data.rfind(b'"%s": ' % name.encode(), start, stop)
        if at >= 0 and (number := _NUMBER.match(data, at + len(name) + 4, stop)):
            head[name] = int(number[0])
    return head
