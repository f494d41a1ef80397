"""All that a folder holds of a job: each file recognised by its content, and given to the reader of its kind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from oddrank.postmortem import dumps, lines, torch_trace
from oddrank.postmortem.calls import Dump
from oddrank.postmortem.logs import Log
from oddrank.postmortem.material import Material
from oddrank.postmortem.owners import owners, rank_of, settle
from oddrank.postmortem.rows import File, short

__all__ = ["files_below", "gather"]

MOST_FILES = 50_000
HEAD = 64 * 1024
LEFT_OUT = (".py", ".pyc", ".html", ".css", ".js", ".png")  # sources, and pages that a tool made
Progress = Callable[[int, int, str], None]


def gather(folders: Iterable[Path], progress: Progress = lambda done, all_, name: None) -> Material:
    """Read all files below some folders.

    Args:
        folders: or single files.
        progress: is called with the bytes that were read, those of all files, and the name of a file.

    Returns:
        What they hold.

    Raises:
        ValueError: a folder is not there, or holds too many files.
    """
    material = Material()
    pids: dict[str, int] = {}

    def unread(name: str, error: OSError) -> None:
        material.files.append(File(name, "", None, f"cannot be read: {error.strerror or error}"))

    found = [(path, name, *_stat(path)) for path, name in files_below(folders, unread)]
    if len(found) > MOST_FILES:
        raise ValueError(f"more than {MOST_FILES} files: name the folders of one job")
    total, done = sum(size for _, _, size, _ in found), 0
    for path, name, size, written in found:
        progress(done, total, name)
        text = lines.Lines(path, partial(_progress, progress, done, total, name))
        try:
            file = _file(path, name, text, material, pids)
            file.size, file.written, file.path = size, written, path
            material.files.append(file)
        except OSError as error:
            unread(name, error)
        done += size
    progress(total, total, "")
    owners(material, pids)
    return material


def files_below(
    folders: Iterable[Path], unread: Callable[[str, OSError], None] = lambda file, error: None
) -> Iterator[tuple[Path, str]]:
    """The files below some folders, each with its name in the evidence; no links, no sources, no pages.

    `unread` is told of a folder that cannot be read. Raises ValueError where a folder is not there.
    """
    folders = list(folders)
    alike = Counter(folder.name for folder in folders)
    for folder in folders:
        name = str(folder) if alike[folder.name] > 1 else folder.name  # node1/logs and node2/logs are two
        if folder.is_file():
            yield folder, short(name)
            continue
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder")
        above = f"{name}/" if len(folders) > 1 else ""

        def closed(error: OSError, folder: Path = folder, above: str = above) -> None:
            unread(short(f"{above}{os.path.relpath(error.filename, folder)}/"), error)

        for root, inner, names in os.walk(folder, onerror=closed):
            inner.sort()
            for name in sorted(names):
                path = Path(root, name)
                if path.is_file() and not path.is_symlink() and path.suffix not in LEFT_OUT:
                    yield path, short(above + str(path.relative_to(folder)), 4096)


def _progress(progress: Progress, before: int, total: int, name: str, done: int) -> None:
    progress(before + done, total, name)


def _stat(path: Path) -> tuple[int, float]:
    """The size of a file in bytes, and when it was written; 0 for one that is gone, as of a job that goes on."""
    try:
        stat = path.stat()
        return stat.st_size, stat.st_mtime
    except OSError:
        return 0, 0.0


def _file(path: Path, name: str, text: lines.Lines, material: Material, pids: dict[str, int]) -> File:
    """Give a file to the reader of its kind."""
    with path.open("rb") as opened:
        head = opened.read(HEAD)
    rank = rank_of(str(path.absolute()))
    if not head:
        return File(name, "", rank, "empty")
    if dumps.looks_like(head):
        return _dump(path, name, rank, material)
    if torch_trace.looks_like(head):
        trace = torch_trace.Trace(name, rank)
        trace.read(text)
        _take(trace, material, pids)
        return File(name, "TORCH_TRACE", trace.rank, _counts(trace))
    if lines.looks_like(head):
        log = Log(name, rank, _srun(head))
        log.read(text)
        settle(log)
        _take(log, material, pids)
        kinds = {row.kind for row in log.rows}
        kind = "stacks" if kinds == {"stack"} else "log" if kinds or log.torch else ""
        return File(name, kind, log.rank, _counts(log) if kind else "text in which nothing is known")
    return File(name, "", rank, "binary, of no kind that is known")


def _dump(path: Path, name: str, rank: int | None, material: Material) -> File:
    try:
        dump = dumps.read(path, name, rank)
    except dumps.Unreadable as error:
        return File(name, "", rank, f"no flight record: {error}")
    note = f"{len(dump.calls)} calls" + (f", {dump.backend}" if dump.backend else "")
    if rank is None:
        note += "; its name has no rank, so it was left out"
    elif (other := material.dumps.get(rank)) and not _newer(dump, other):
        note += f"; left out: {other.file} is of the same rank, and newer"
    else:
        note += f"; {other.file} is of the same rank, and older: left out" if other else ""
        material.dumps[rank] = dump
    return File(name, "flight record", rank, note)


def _newer(one: Dump, other: Dump) -> bool:
    return max((c.created for c in one.calls), default=0) > max((c.created for c in other.calls), default=0)


def _srun(head: bytes) -> bool:
    """Whether all lines begin with the number of a task, as `srun --label` writes them."""
    full = [line for line in head.decode("utf-8", "replace").splitlines()[:200] if line.strip()]
    return len(full) > 2 and all(lines.SRUN.match(line) for line in full[:-1])


def _take(read: Log | torch_trace.Trace, material: Material, pids: dict[str, int]) -> None:
    material.rows += read.rows
    pids |= read.pids
    for rank, (line, time) in read.last.items():
        if rank is not None and time > material.last.get(rank, ("", ""))[1]:
            material.last[rank] = (f"{read.file}:{line}", time)


def _counts(read: Log | torch_trace.Trace) -> str:
    kinds = Counter(row.kind for row in read.rows)
    text = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "nothing that stops a job"
    return short(text, 200) + (f"; {read.dropped} rows more were left out" if read.dropped else "")
