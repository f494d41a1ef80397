"""Parts of what torch and tlparse write, as lines: what grep and sed do in a shell."""

from __future__ import annotations

import re
from collections.abc import Iterable

from oddrank import places

__all__ = ["artifact", "between", "kernels_before", "operations", "text"]

_OPERATION = re.compile(r'\s+(\w+: "|return\b)')
_CALL = re.compile(r"^\s+((?:cpp|triton)_\w*fused\w*)(?:\.run)?\(", re.M)
_STEP = re.compile(r"\b(tmp\d+ = \S.*?)\(|\b(tmp\d+\.store)\(|\b(tl\.store)\([^\n]*?, (tmp\d+)")


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


def kernels_before(code: str, last: str) -> dict[str, list[str]]:
    """Of Inductor's code, the kernels that it calls before the first line with `last` in it, with what each calls.

    Args:
        code: Inductor's output code.
        last: part of a line, such as all_reduce_.

    Returns:
        By kernel, its loads, calls and stores, without their arguments.
    """
    bodies = dict(re.findall(r"(?ms)^(\w+) = async_compile\b.*?\'\'\'(.*?)\'\'\'", code))
    called = _CALL.findall(code.partition("def call(")[2].partition(last)[0])
    return {
        name: [" ".join(part for part in step if part) for step in _STEP.findall(bodies[name])]
        for name in called
    }


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
