"""The texts in torch's trace, parsed: a printed graph, Inductor's code, the report of a break, failed guards."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from oddrank.record.guard_words import source as guarded
from oddrank.record.nodes import AT, Node, nodes

__all__ = [
    "Break",
    "digest",
    "failed_guards",
    "graph",
    "kernels",
    "parts",
    "report",
    "resumed",
    "symbol",
    "without_addresses",
]

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d{1,9})")
_FRAME = re.compile(r'^  File "(?>(.+?)", line )(\d{1,9}), in (?>(.+)\n)    (.*)$', re.M)
# what a collective is called with, up to its group; the rest of the line where it has none
_GROUP = re.compile(r"(torch\.ops\._c10d_functional[\w.]*\(.*?), '[^'\n]*'\)|torch\.ops\._c10d_functional.*")
_NODES = "Source Nodes: ["
_KERNEL = re.compile(r"\s+(?:\w+ = )?((?:extern_kernels|torch\.ops)[\w.]+|(?:cpp|triton)_\w+?)(?:\.run)?\(")


def resumed(name: str) -> tuple[str, int]:
    """The function of a frame, and the line after which it goes on; 0 at its beginning.

    >>> resumed("torch_dynamo_resume_in_forward_at_15"), resumed("forward")
    (('forward', 15), ('forward', 0))
    """
    found = _RESUMED.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, 0)


def graph(text: str) -> list[Node]:
    """The operators of a graph of which torch says the line, in order. Reads of items and attributes are none."""
    return [node for node in nodes(text) if node.file and node.kind in ("op", "collective", "wait")]


def digest(text: str) -> str:
    """A short hash of a graph, the same on every rank that has the same graph: devices and groups do not count."""
    alike = re.sub(r"#.*", "", text)
    alike = re.sub(r"cuda:\d+|device\(type='cuda', index=\d+\)", "cuda", alike)
    alike = _GROUP.sub(lambda m: m[0] if m[1] is None else f"{m[1]})", alike)
    return hashlib.md5(alike.encode(), usedforsecurity=False).hexdigest()[:12]


def parts(text: str) -> list[tuple[str, int, str]]:
    """The line of the first operator of each part of a graph that DDP cut: (file, line, function)."""
    found = []
    for part in re.split(r"^\s+class submod_\d+\(", text, flags=re.M)[1:]:
        if place := next((place for line in part.splitlines() if (place := AT.match(line))), None):
            found.append((place[1], int(place[2]), place[3]))
    return found


def kernels(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """The kernels of Inductor's wrapper in order, each with the nodes that it was made of."""
    found: list[tuple[str, tuple[str, ...]]] = []
    nodes: tuple[str, ...] = ()
    for line in text.splitlines():
        if _NODES in line:
            nodes = tuple(line.split(_NODES, 1)[1].split("]")[0].split(", "))
        elif called := _KERNEL.match(line):
            found.append((called[1], nodes))
            nodes = ()
    return found


def symbol(source: str, values: str) -> str:
    """What a symbol stands for, in words.

    Args:
        source: As Dynamo names it.
        values: Its smallest and largest value.

    >>> symbol("L['x'].size()[0]", "[2, int_oo]"), symbol("L['rate']", "[-oo, oo]")
    ('dimension 0 of `x`, at least 2', '`rate`')
    """
    sized = re.fullmatch(r"(.+)\.size\(\)\[(\d{1,3})\]", source)
    words = f"dimension {sized[2]} of `{guarded(sized[1])}`" if sized else f"`{guarded(source)}`"
    low, _, high = values.strip("[]").partition(", ")
    words += "" if "oo" in low or not low else f", at least {low}"
    return words + ("" if "oo" in high or not high else f", at most {high}")


# --- reports of breaks and of failed guards ---


@dataclass(frozen=True, slots=True)
class Break:
    """Torch's report of a graph break.

    Args:
        title: What happened, in a line.
        why: Torch's explanation; '' for none.
        hints: What torch suggests.
        frames: The program's stack as (file, line, function, code), outermost first.
        after: Title and explanation of a second break that the first one led to, which ended the frame; '' for none.
        text: All that torch says, but for the stacks.
    """

    title: str
    why: str = ""
    hints: tuple[str, ...] = ()
    frames: tuple[tuple[str, int, str, str], ...] = ()
    after: tuple[str, str] = ("", "")
    text: str = ""


_BEGINS = re.compile(r"^.*?(?:Graph Break Reason: |Graph break encountered:)", re.S)
_TRACING = re.compile(r"^\s*(?:Encountered graph break when|Graph break while) [^\n]*\n")
_RAISED = re.compile(r"\n(?>([\w.]+)): ")
_ERROR = re.compile(r"^torch\._dynamo\.exc\.|(?:Error|Exception|Limit\w*)$")
_ANOTHER = "*** While handling this graph break, another graph break occurred: ***"
# torch names the kind of break in one line and the function in another
_WHAT = (
    (re.compile(r"Skip calling function `<function (\S+) at"), "{title} {what}"),
    (re.compile(r"^\s*Developer debug context: .*qualname: (\S+?),", re.M), "{title}: {what}"),
    (re.compile(r"Developer debug context: builtin (\S+) "), "{title} {what}"),
)


def report(text: str) -> Break:
    """Parse the payload of a `dynamo_graph_break_reason`.

    >>> report("Graph break encountered:\\n\\nCall to `print()`\\n  Explanation: no.\\n  Hint: Remove it.").hints
    ('Remove it.',)
    """
    said = text.partition("\nTraceback (most recent call last)")[0]  # what follows is Dynamo's own stack
    head, _, stack = said.partition("User code traceback:")
    if not stack:
        head, _, stack = said.partition("following user code:")
        raised = next((m for m in _RAISED.finditer(said) if _ERROR.search(m[1])), None)
        head = said[raised.end() :] if raised else head
    body = _TRACING.sub("", _BEGINS.sub("", _BEGINS.sub("", head, count=1), count=1))
    first, _, second = body.partition(_ANOTHER)
    why = re.search(r"Explanation: (.*)", body)
    hints = re.findall(r"Hint: (.*)", first)
    later = re.search(r"Explanation: (.*)", second)
    return Break(
        without_addresses(_title(first)),
        without_addresses(why[1]) if why else "",
        tuple(dict.fromkeys(without_addresses(hint) for hint in hints if "report an issue" not in hint)),
        tuple((file, int(line), func, code) for file, line, func, code in _FRAME.findall(stack)),
        (without_addresses(_title(second)), later[1] if later else "") if second.strip() else ("", ""),
        without_addresses(body.partition("Stack variable source attribution:")[0]).strip(),
    )


def _title(body: str) -> str:
    """What happened, in a line, with the function that torch names in another one."""
    lines = [line.strip() for line in body.strip().splitlines() if line.strip()]
    title = lines[1] if len(lines) > 1 and lines[0].endswith(":") else lines[0] if lines else "graph break"
    found = ((form, what.search(body)) for what, form in _WHAT)
    return next((form.format(title=title, what=what[1]) for form, what in found if what), title)


def failed_guards(text: str) -> list[str]:
    """The guards that failed, the newest code's first: torch gives a single one as it is, and several as JSON."""
    if text.lstrip().startswith("["):
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = [text]
    else:
        said = [text] if text.strip() else []
    return [without_addresses(re.sub(r"^!?\d+(?:/\d+)+: ", "", str(one).strip())) for one in said]


def without_addresses(text: str) -> str:
    """A text without memory addresses, so that it is the same on every rank.

    >>> without_addresses("calling <function f at 0x7fd0a7b75d00>")
    'calling f'
    """
    text = re.sub(r" at 0x[0-9a-f]+|, \d{9,}(?=\))", "", text)
    return re.sub(r"<(?:function|bound method) (?>((?:[\w.]|<\w+>)+))[^<>]*>", r"\1", text)
