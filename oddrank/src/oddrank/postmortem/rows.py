"""What the readers of all kinds of files produce: rows of evidence, and the calls of a flight record."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Call", "Dump", "Frame", "Read", "Row", "is_own", "own", "scatters", "short"]

# torch's and Python's own files, and code that a compiler generated
FOREIGN = re.compile(
    r"(^|/)(site|dist)-packages/|/lib/python3\.|^<|^torch/|torchinductor_|(^|/)c[a-z0-9]{50,}\.py$|^python3\.\d+/"
    r"|^(threading|queue|selectors|socket|subprocess|contextlib|runpy|functools|pickle|ssl)\.py$"  # py-spy's names
    r"|^(multiprocessing|concurrent|asyncio|importlib|logging|json)/"
)
GENERATED = re.compile(
    r"^<eval_with_key>|torchinductor_|(^|/)c[a-z0-9]{50,}\.py$|_functorch/_aot_autograd|_inductor/"
)
COMPILES = re.compile(r"torch/_dynamo/convert_frame|torch/_inductor/compile_fx")
LONGEST = 400


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


@dataclass(frozen=True, slots=True)
class Call:
    """One collective or message of a flight record; `index` is its place in the record, `entry` counts from 0 there."""

    rank: int
    group: str
    desc: str
    seq: int
    op: str
    p2p: bool
    inputs: tuple
    outputs: tuple
    dtypes: tuple
    open: bool
    index: int
    created: int
    timeout_ms: int
    frames: tuple[Frame, ...]
    file: str

    @property
    def cite(self) -> str:
        """The place of the call in its record."""
        return f"{self.file}#{self.index}"

    @property
    def where(self) -> str:
        """The program's own line that made the call, '' where the record has none."""
        return own(self.frames)

    @property
    def of(self) -> str:
        """The group in words: its description, or its name where it has none."""
        return self.desc if self.desc not in ("", "undefined") else f"group {self.group}"

    @property
    def by(self) -> str:
        """What made the call: 'the compiler', 'a compiled graph', or '' for the program."""
        if any(COMPILES.search(frame.file) for frame in self.frames):
            return "the compiler"
        return "a compiled graph" if any(GENERATED.search(frame.file) for frame in self.frames) else ""

    def __str__(self) -> str:
        shown = self.outputs if scatters(self.op) else self.inputs
        sizes = ", ".join(str(list(size)) for size in shown[:3]) + (", …" if len(shown) > 3 else "")
        kinds = ", ".join(dict.fromkeys(self.dtypes))
        return f"{self.op}({sizes}{' ' + kinds if kinds else ''})"


@dataclass(slots=True)
class Dump:
    """The flight record of one rank: its calls in order, and the members of its groups where it has them."""

    file: str
    rank: int | None
    members: dict[str, tuple[int, ...]]
    calls: list[Call] = field(default_factory=list)
    backend: str = ""
    wrapped: bool = False  # whether its oldest calls have been overwritten
    written: float = 0.0  # when its file was


@dataclass(slots=True)
class Read:
    """What was read of one file: its kind in words ('' for a file in which nothing was recognised), and a note."""

    file: str
    kind: str
    rank: int | None = None
    note: str = ""
    size: int = 0
    written: float = 0.0  # when the file was


def scatters(op: str) -> bool:
    """Whether a collective is a scatter, of which only the source has inputs: all ranks have an output.

    >>> scatters("gloo:scatter"), scatters("_reduce_scatter_base"), scatters("gather")
    (True, False, False)
    """
    return "scatter" in op and "reduce_scatter" not in op


def is_own(file: str) -> bool:
    """Whether a file of a stack is the program's own.

    >>> is_own("/home/me/train.py"), is_own("/env/lib/python3.11/site-packages/torch/_ops.py"), is_own("queue.py")
    (True, False, False)
    """
    return not FOREIGN.search(file)


def own(frames: tuple[Frame, ...], most: int = 2) -> str:
    """The program's own frames of a stack that begins with the innermost, as `inner < outer`; '' where there is none.

    >>> own((Frame("/env/site-packages/torch/_ops.py", 5, "f"), Frame("/a/net.py", 9, "mean"), Frame("b.py", 3, "g")))
    'net.py:9 in mean < b.py:3 in g'
    """
    mine = [str(frame) for frame in frames if is_own(frame.file) and frame.name != "<module>"]
    return " < ".join(mine[:most] or [str(frame) for frame in frames if is_own(frame.file)][:1])


def short(text: str, most: int = LONGEST) -> str:
    """A text of a file, cut to a length that fits a page; control characters are replaced.

    >>> short("a\\x1b[31m" + "b" * 20, 8)
    'a?[31mbb…'
    """
    clean = "".join(char if char.isprintable() or char == "\t" else "?" for char in text[: most + 1])
    return clean if len(clean) <= most else clean[:most] + "…"
