"""What the readers of all kinds of files produce: files, rows of evidence, and the frames of a stack."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MOST_RANKS", "File", "Frame", "Row", "above_own", "is_own", "own_lines", "short"]

# torch's and Python's own files, and code that a compiler generated
FOREIGN = re.compile(
    r"(^|/)(site|dist)-packages/|/lib/python3\.|^<|^torch/|torchinductor_|(^|/)c[a-z0-9]{50,}\.py$|^python3\.\d+/"
    r"|^(threading|queue|selectors|socket|subprocess|contextlib|runpy|functools|pickle|ssl)\.py$"  # py-spy's names
    r"|^(multiprocessing|concurrent|asyncio|importlib|logging|json)/"
)
LONGEST = 400
MOST_RANKS = 65_536


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack; `line` counts from 1."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return short(f"{self.file.rpartition('/')[2]}:{self.line} in {self.name}")


@dataclass(frozen=True, slots=True)
class Row:
    """One piece of evidence.

    `kind` is begin, traced or end (of a compile), recompile, limit, break, hit or miss (of a cache; `key` is its key),
    graph (`key` is its digest), watchdog, gloo, named (torch's text names the ranks), error, thread (an error that
    ended a thread; `key` is its name), memory, abort, exit, stack (`key` is the process), stranger (a call in a group
    that the rank is not in), outside (a signal to the launcher) or process (that the launcher ended, by the local
    rank). `file` and `line` say where it stands, `where` the program's own line, `key` what identifies it, `time` the
    time as it is printed there.
    """

    rank: int | None
    kind: str
    file: str
    line: int
    text: str
    where: str = ""
    key: str = ""
    time: str = ""
    frames: tuple[Frame, ...] = ()

    @property
    def cite(self) -> str:
        """The place of the evidence.

        >>> Row(0, "error", "a.log", 3, "KeyError: 'x'").cite
        'a.log:3'
        """
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def at(self) -> str:
        """The program's own line, to be put behind a text; '' where none is known."""
        return f", at {self.where}" if self.where else ""


@dataclass(slots=True)
class File:
    """One file: what it was taken for, in words ('' where nothing in it was recognised), and a note."""

    name: str
    kind: str
    rank: int | None = None
    note: str = ""
    size: int = 0
    written: float = 0.0  # when the file was
    path: Path = Path()


def is_own(file: str) -> bool:
    """Whether a file of a stack is the program's own.

    >>> is_own("/home/me/train.py"), is_own("/env/lib/python3.11/site-packages/torch/_ops.py"), is_own("queue.py")
    (True, False, False)
    """
    return not FOREIGN.search(file)


def own_lines(frames: tuple[Frame, ...], most: int = 2) -> str:
    """The program's own frames of a stack that begins with the innermost, as `inner < outer`; '' where there is none.

    >>> torch = Frame("/env/site-packages/torch/_ops.py", 5, "f")
    >>> own_lines((torch, Frame("/a/net.py", 9, "mean"), Frame("b.py", 3, "g")))
    'net.py:9 in mean < b.py:3 in g'
    """
    mine = [str(frame) for frame in frames if is_own(frame.file) and frame.name != "<module>"]
    return " < ".join(mine[:most] or [str(frame) for frame in frames if is_own(frame.file)][:1])


def above_own(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames of libraries above the program's innermost own one."""
    return frames[: next((i for i, frame in enumerate(frames) if is_own(frame.file)), len(frames))]


def short(text: str, most: int = LONGEST) -> str:
    """A text of a file, cut to a length that fits a page; control characters are replaced.

    >>> short("a\\x1b[31m" + "b" * 20, 8)
    'a?[31mbb…'
    """
    clean = "".join(char if char.isprintable() or char == "\t" else "?" for char in text[: most + 1])
    return clean if len(clean) <= most else clean[:most] + "…"
