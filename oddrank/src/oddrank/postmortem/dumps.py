"""Flight records: the pickles that NCCL and gloo write, and torch's JSON form. A record from outside is untrusted."""

from __future__ import annotations

import io
import json
import pickle
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from oddrank.postmortem.calls import Call, Dump, scatters
from oddrank.postmortem.rows import Frame, short

__all__ = ["Unreadable", "looks_like", "read"]

MOST_BYTES = 256 * 2**20
MOST_MEMORY = 2**30  # and 64 bytes for each byte of a pickle
LARGEST = 10**40  # Python refuses to print a number of 4,300 digits
DONE = {"completed"}


class Unreadable(ValueError):
    """A file is no flight record, or no whole one; the message says why in one sentence."""


class _Plain(pickle.Unpickler):
    """An unpickler of numbers, texts, lists, tuples and dicts: a name of any class or function is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise Unreadable(
            f"the pickle asks for {short(f'{module}.{name}', 80)}; a flight record has plain data only"
        )


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so may be a flight record.

    >>> looks_like(b"\\x80\\x02}q"), looks_like(b'{"comm_lib_version":""'), looks_like(b"Traceback")
    (True, True, False)
    """
    plain = head.lstrip()
    known = (b'"entries"', b'"pg_config"', b'"comm_lib_version"', b'"nccl_version"')
    return head[:1] == b"\x80" or (plain[:1] == b"{" and any(name in plain for name in known))


def read(path: Path, file: str, rank: int | None) -> Dump:
    """Read one flight record.

    Args:
        path: of the file.
        file: what the evidence calls it.
        rank: whose it is; the record does not say.

    Returns:
        The record; its calls are in the order of the record.

    Raises:
        Unreadable: it is no flight record, it is cut off, or it holds more than plain data.
    """
    if path.stat().st_size > MOST_BYTES:
        raise Unreadable(f"more than {MOST_BYTES // 2**20} MiB, which no flight record has")
    data = path.read_bytes()
    record = _json(data) if data.lstrip()[:1] == b"{" else _pickle(data)
    if not isinstance(record, dict) or not ({"entries", "pg_config", "pg_status"} & set(record)):
        raise Unreadable("plain data, and no flight record: it has neither entries nor pg_config")
    try:
        return _dump(record, file, rank, path.stat().st_mtime)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unreadable(
            f"a flight record of an unknown form: {type(error).__name__} {short(str(error), 80)}"
        ) from None


@contextmanager
def _bounded(more: int) -> Iterator[None]:
    """At most so many bytes more for this process: a pickle of 10 bytes can ask for 64 GB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + more
    if soft != resource.RLIM_INFINITY and soft < most:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _pickle(data: bytes) -> Any:
    try:
        with _bounded(MOST_MEMORY + 64 * len(data)):
            return _Plain(io.BytesIO(data)).load()
    except Unreadable:
        raise
    except EOFError:
        raise Unreadable("the pickle is cut off: the process ended while it wrote") from None
    except MemoryError:
        raise Unreadable("the pickle asks for more memory than a flight record needs") from None
    except Exception as error:  # the format's errors are of many classes
        cut = "truncated" in str(error) or "exhausted" in str(error)
        why = (
            "is cut off: the process ended while it wrote"
            if cut
            else f"cannot be read: {short(str(error), 80)}"
        )
        raise Unreadable(f"the pickle {why}") from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise Unreadable("the JSON of a flight record is cut off or damaged") from None


def _dump(record: dict, file: str, rank: int | None, written: float) -> Dump:
    members = {}
    for name, group in record.get("pg_config", {}).items():
        ranks = tuple(int(number) for number in re.findall(r"\d+", _text(group.get("ranks", ""), 10**6)))
        if ranks:
            members[_text(name)] = ranks
    dump = Dump(file, rank, members, written=written)
    frame = _frames()
    for index, entry in enumerate(record.get("entries", [])):
        dump.calls.append(_call(entry, index, file, -1 if rank is None else rank, frame))
    dump.calls = _coalesced(dump.calls)
    if dump.calls:
        dump.wrapped = _whole(record["entries"][0].get("record_id", 0)) > 0
        dump.backend = _text(record["entries"][0]["profiling_name"]).partition(":")[0]
    return dump


def _coalesced(calls: list[Call]) -> list[Call]:
    """The calls, those of a batch with the state of its last entry: torch does not update their own."""
    ended: dict[tuple, bool] = {}
    found = []
    for call in reversed(calls):
        key = (call.group, call.desc, call.p2p, call.seq)
        if call.op == "coalesced":
            ended[key] = call.open
        found.append(replace(call, open=ended[key]) if key in ended and call.open != ended[key] else call)
    return found[::-1]


def _frames() -> Callable[[Any], Frame]:
    kept: dict[tuple, Frame] = {}

    def one(value: Any) -> Frame:
        key = (_text(value["filename"]), _whole(value["line"]), _text(value["name"]))
        return kept.setdefault(key, Frame(*key))

    return one


def _call(entry: dict, index: int, file: str, rank: int, frame: Callable[[Any], Frame]) -> Call:
    group, desc = (*map(_text, entry["process_group"]), "")[:2]
    p2p = bool(entry.get("is_p2p", False))
    name = _text(entry["profiling_name"])
    state = _text(entry.get("state", ""))
    return Call(
        rank=rank,
        group=group,
        desc=desc,
        seq=_whole(entry["p2p_seq_id" if p2p else "collective_seq_id"]),
        op=name.partition(":")[2] or name,
        p2p=p2p,
        inputs=_sizes(entry.get("input_sizes", ())),
        outputs=_sizes(entry.get("output_sizes", ())),
        dtypes=tuple(map(_text, entry.get("output_dtypes" if scatters(name) else "input_dtypes", ()))),
        open=not (entry.get("retired", False) or state in DONE),
        index=index,
        created=_whole(entry.get("time_created_ns") or 0),
        timeout_ms=_whole(entry.get("timeout_ms") or 0),
        frames=tuple(map(frame, entry.get("frames", ()))),
        file=file,
    )


def _sizes(value: Any) -> tuple:
    return tuple(tuple(_whole(number) for number in one) for one in value)


def _whole(value: Any) -> int:
    """A number, which torch's JSON form has as a text."""
    if abs(number := int(value)) > LARGEST:
        raise ValueError("a number that no record has")
    return number


@lru_cache(maxsize=10_000)
def _clean(text: str, most: int) -> str:
    return short(text, most)


def _text(value: Any, most: int = 400) -> str:
    """A text, or a number as a text, and nothing else: a list of 100 bytes can be a text of gigabytes."""
    if not isinstance(value, str | int):
        raise TypeError(f"{type(value).__name__} instead of a text")
    return _clean(value, most) if isinstance(value, str) else str(_whole(value))
