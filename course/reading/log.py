"""Parts of what torch and tlparse write, as lines: what grep and sed do in a shell."""

from __future__ import annotations

import re
from collections.abc import Iterable

from labkit import places

__all__ = ["artifact", "between", "operations", "text"]

_OPERATION = re.compile(r'\s+(\w+: "|return\b)')


def artifact(log: str, name: str, frame: str = "") -> list[str]:
    """The lines of one artifact, without their heads and with short paths.

    Args:
        log: what TORCH_LOGS wrote on one rank.
        name: the artifact, such as graph_code.
        frame: only lines of this frame and attempt, such as 0/0.

    >>> artifact("V1 torch/a.py:7] [0/0] [__graph_code] return (y,)", "graph_code", "0/0")
    ['return (y,)']
    """
    compile_id = re.escape(frame) if frame else r"[^]]+"
    return re.findall(rf"\] \[{compile_id}\] \[__{name}\] ?(.*)", places.rewrite(log))


def between(lines: Iterable[str], first: str, last: str) -> list[str]:
    """The lines from the one that has `first` in it to the next that has `last` in it.

    Raises:
        ValueError: no line has `first` in it.

    >>> between(["import torch", "def call(x):", "    return (x,)", "main()"], "def call(", "return (")
    ['def call(x):', '    return (x,)']
    """
    lines = list(lines)
    start = next((i for i, line in enumerate(lines) if first in line), None)
    if start is None:
        raise ValueError(f"no line has {first!r} in it")
    end = next((i for i in range(start + 1, len(lines)) if last in lines[i]), len(lines) - 1)
    return lines[start : end + 1]


def operations(lines: Iterable[str]) -> list[str]:
    """Of a printed graph, the lines with an operation or with `return`.

    >>> operations(["class G:", '    y: "f32[4]" = x * 2', "    # a comment", "    return (y,)"])
    ['    y: "f32[4]" = x * 2', '    return (y,)']
    """
    return [line for line in lines if _OPERATION.match(line)]


def text(page: str) -> list[str]:
    """The lines of text of a page in HTML.

    >>> text("<style>p {}</style><p>Rank 0</p>\\n\\n<b>Rank 1</b>")
    ['Rank 0', 'Rank 1']
    """
    bare = re.sub(r"(?s)<(style|script).*?</\1>|<[^>]*>", "", page)
    return [line.strip() for line in bare.splitlines() if line.strip()]
