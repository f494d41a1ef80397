"""All that a folder holds of a job: each file recognised by its content, and given to the reader of its kind."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from oddrank.postmortem import dumps, logs, torch_trace
from oddrank.postmortem.lines import SRUN, Lines
from oddrank.postmortem.lines import looks_like as looks_like_text
from oddrank.postmortem.rows import Dump, Read, Row, short

__all__ = ["Material", "found", "gather", "rank_of"]

MOST_FILES = 50_000
HEAD = 64 * 1024
LEFT_OUT = (".py", ".pyc", ".html", ".css", ".js", ".png")  # sources, and pages that a tool made
NAMED = (
    re.compile(r"(?:^|[^a-z])rank[_.=-]?(\d+)(?!\d)", re.I),
    re.compile(r"attempt_\d+/(\d+)/std(?:out|err)\.log$"),
    re.compile(r"(?:^|/)[^/]*?[_.-](\d+)(?:\.[a-z]\w*)?$", re.I),
)
JOB = re.compile(
    r"(?:^|/)(?:slurm-\d+[^/]*|[^/]*[_.-]\d{5,}\.(?:out|err|log))$", re.I
)  # Slurm's names: `%x-%j.out`
MOST_RANKS = 65_536
ENDED_BY_LAUNCHER = ("-15", "143")
RAISED = ("error", "gloo", "named", "memory", "store")  # as what a traceback counts
LAUNCHERS = re.compile(r"ChildFailedError|SignalException")  # errors of the launcher itself
Progress = Callable[[int, int, str], None]


@dataclass(slots=True)
class Material:
    """What was read: `rows` of evidence and `dumps`, and of each file what it was taken for.

    `older` has the records that are or may be of an earlier moment: they are compared with none. `why` has, by rank,
    the later stack or error that shows it: a sentence, and the place of the evidence.
    """

    reads: list[Read] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    dumps: dict[int, Dump] = field(default_factory=dict)
    older: dict[int, Dump] = field(default_factory=dict)
    why: dict[int, tuple[str, str]] = field(default_factory=dict)
    last: dict[int, tuple[str, str]] = field(default_factory=dict)  # by rank: where its log ends, and when

    def of(self, rank: int, *kinds: str) -> list[Row]:
        """The rows of a rank, of these kinds, in the order of their files."""
        return [row for row in self.rows if row.rank == rank and row.kind in kinds]

    def written(self, file: str) -> float:
        """When a file was written; 0 where that is not known."""
        return next((read.written for read in self.reads if read.file == file), 0.0)

    def ranks(self) -> list[int]:
        """Every rank that a file or a group names."""
        records = self.dumps | self.older
        named = {row.rank for row in self.rows if row.rank is not None} | set(records) | set(self.last)
        named |= {rank for dump in records.values() for members in dump.members.values() for rank in members}
        named |= {read.rank for read in self.reads if read.rank is not None and read.kind}
        return sorted(named)


def rank_of(path: str) -> int | None:
    """The rank that a path names, None where it names none.

    >>> rank_of("tt/dedicated_log_torch_trace_rank_3_x1y.log"), rank_of("logs/x/attempt_0/2/stderr.log")
    (3, 2)
    >>> rank_of("nccl_trace_rank_12"), rank_of("trace_7"), rank_of("stacks_1.txt"), rank_of("launcher.log")
    (12, 7, 1, None)
    >>> rank_of("slurm-77.out"), rank_of("train-123456.out")
    (None, None)
    """
    for pattern in NAMED[:2] if JOB.search(path) else NAMED:
        if (found := pattern.search(path)) and int(found[1]) < MOST_RANKS:
            return int(found[1])
    return None


def gather(folders: Iterable[Path], progress: Progress = lambda done, all_, file: None) -> Material:
    """Read all files below some folders.

    Args:
        folders: or single files.
        progress: is called with the bytes that were read, those of all files, and the name of a file.

    Returns:
        What they hold.

    Raises:
        ValueError: a folder is not there, or holds too many files.
    """
    material, pids = Material(), {}  # type: tuple[Material, dict[str, int]]

    def unread(file: str, error: OSError) -> None:
        material.reads.append(Read(file, "", None, f"cannot be read: {error.strerror or error}"))

    paths = list(found(folders, unread))
    if len(paths) > MOST_FILES:
        raise ValueError(f"more than {MOST_FILES} files: name the folders of one job")
    total, done = sum(_size(path) for path, _ in paths), 0
    for path, file in paths:
        progress(done, total, file)
        try:
            _one(
                path,
                file,
                material,
                pids,
                partial(_on, progress, done, total, file),
            )
        except OSError as error:
            unread(file, error)
        material.reads[-1].written = _written(path)
        done += _size(path)
    progress(total, total, "")
    _processes(material, pids)
    _fatal(material)
    _raised(material)
    return material


def found(
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


def _size(path: Path) -> int:
    """In bytes; 0 for a file that is gone, as those of a job that goes on may be."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _one(path: Path, file: str, to: Material, pids: dict[str, int], seen: Callable[[int], None]) -> None:
    size = path.stat().st_size
    with path.open("rb") as opened:
        head = opened.read(HEAD)
    rank = rank_of(str(path.absolute()))
    if not head:
        to.reads.append(Read(file, "", rank, "empty"))
    elif dumps.looks_like(head):
        try:
            dump = dumps.read(path, file, rank)
        except dumps.Unreadable as error:
            to.reads.append(Read(file, "", rank, f"no flight record: {error}", size))
            return
        note = f"{len(dump.calls)} calls" + (f", {dump.backend}" if dump.backend else "")
        if rank is None:
            note += "; its name has no rank, so it was left out"
        elif (other := to.dumps.get(rank)) and not _newer(dump, other):
            note += f"; left out: {other.file} is of the same rank, and newer"
        else:
            note += f"; {other.file} is of the same rank, and older: left out" if other else ""
            to.dumps[rank] = dump
        to.reads.append(Read(file, "flight record", rank, note, size))
    elif torch_trace.looks_like(head):
        trace, lines = torch_trace.Trace(file, rank), _Seen(path, seen)
        trace.read(lines)
        _take(trace, to, pids)
        to.reads.append(Read(file, "TORCH_TRACE", trace.rank, _counts(trace), size))
    elif looks_like_text(head):
        log = logs.Log(file, rank, _srun(head))
        log.read(_Seen(path, seen))
        _settle(log)
        _take(log, to, pids)
        kinds = {row.kind for row in log.rows}
        kind = "stacks" if kinds == {"stack"} else "log" if kinds or log.torch else ""
        to.reads.append(
            Read(file, kind, log.rank, _counts(log) if kind else "text in which nothing is known", size)
        )
    else:
        to.reads.append(Read(file, "", rank, "binary, of no kind that is known", size))


def _on(progress: Progress, base: int, total: int, file: str, more: int) -> None:
    progress(base + more, total, file)


class _Seen(Lines):
    def __init__(self, path: Path, seen: Callable[[int], None]) -> None:
        super().__init__(path)
        self.seen = seen

    def __iter__(self) -> Iterator[tuple[int, str]]:
        told = 0
        for number, line in super().__iter__():
            if self.done - told > 4 * 2**20:
                told = self.done
                self.seen(told)
            yield number, line


def _newer(one: Dump, other: Dump) -> bool:
    return max((c.created for c in one.calls), default=0) > max((c.created for c in other.calls), default=0)


def _srun(head: bytes) -> bool:
    """Whether all lines begin with the number of a task, as `srun --label` writes them."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines()[:200] if line.strip()]
    return len(lines) > 2 and all(SRUN.match(line) for line in lines[:-1])


def _settle(log: logs.Log) -> None:
    """A launcher names a file by the local rank: where all that torch printed is of one other rank, that one counts."""
    said = Counter(log.said)
    if log.rank is not None and len(said) == 1 and (rank := next(iter(said))) != log.rank:
        log.rows = [
            replace(row, rank=rank) if row.rank == log.rank and row.kind != "exit" else row
            for row in log.rows
        ]
        log.rank = rank


def _take(read: logs.Log | torch_trace.Trace, to: Material, pids: dict[str, int]) -> None:
    to.rows += read.rows
    pids |= read.pids
    for rank, (line, time) in read.last.items():
        if rank is not None and time > to.last.get(rank, ("", ""))[1]:
            to.last[rank] = (f"{read.file}:{line}", time)


def _processes(to: Material, pids: dict[str, int]) -> None:
    """A stack of py-spy names a process, its file often, too: which rank that is, a log says, or nothing."""
    ended = [row.key for row in to.rows if row.kind == "process"]
    spied = {(row.file, row.key) for row in to.rows if row.kind == "stack" and row.key}
    for read in to.reads:
        if (read.file, str(read.rank)) in spied:
            read.rank = None
    for at, row in enumerate(to.rows):
        if row.kind == "stack" and row.key == str(row.rank):
            to.rows[at] = replace(row, rank=None)
    if ended and len(set(ended)) == len(ended) and set(to.ranks()) <= set(range(len(ended))):
        pids = (
            dict(zip(ended, range(len(ended)), strict=True)) | pids
        )  # torchrun ends them by their local rank
    for at, row in enumerate(to.rows):
        if row.kind == "stack" and row.key in pids:
            to.rows[at] = replace(row, rank=pids[row.key])


def _fatal(to: Material) -> None:
    """The text of an abort has no rank in a log of all ranks: where one rank alone ended by that signal, it is its."""
    for text, code in (("Aborted", "-6"), ("Segmentation fault", "-11"), ("Bus error", "-7")):
        ends = [row for row in to.rows if row.kind == "abort" and row.text == f"Fatal Python error: {text}"]
        ranks = {row.rank for row in to.rows if row.kind == "exit" and row.key == code}
        if len(ends) != 1 or ends[0].rank is not None or len(ranks) != 1:
            continue
        end, found = ends[0], False
        for at, row in enumerate(to.rows):
            if row.rank is not None or row.file != end.file or row.line < end.line - 4:
                continue
            stack = row.kind == "stack" and not row.key and not found and row.line > end.line
            found = found or stack
            if stack or (row.kind in ("abort", "gloo") and row.line <= end.line):
                to.rows[at] = replace(row, rank=next(iter(ranks)))


def _raised(to: Material) -> None:
    """The one traceback without a rank is that of the one rank that torchrun saw end with the status of an error."""
    failed = {row.rank for row in to.rows if row.kind == "exit" and row.key not in ENDED_BY_LAUNCHER}
    raised = {row.rank for row in to.rows if row.kind == "exit" and row.key == "1"}
    found = [at for at, row in enumerate(to.rows) if row.rank is None and row.frames and row.kind in RAISED]
    found = [at for at in found if not LAUNCHERS.search(to.rows[at].text)]
    own = any(row.rank in raised and row.frames and row.kind in RAISED for row in to.rows)
    if len(failed) == len(raised) == 1 and len({to.rows[at].text for at in found}) == 1 and not own:
        for at in found:
            to.rows[at] = replace(to.rows[at], rank=next(iter(raised)))


def _counts(read: logs.Log | torch_trace.Trace) -> str:
    kinds = Counter(row.kind for row in read.rows)
    said = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "nothing that stops a job"
    return short(said, 200) + (f"; {read.dropped} rows more were left out" if read.dropped else "")
