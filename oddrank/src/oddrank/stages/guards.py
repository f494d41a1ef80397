"""The guards of a compile, parsed from the tree that Dynamo prints, and grouped by what they protect."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from oddrank.places import rewrite

__all__ = ["FOLDED", "GLOBAL", "Guard", "group", "parse"]

GLOBAL = "torch's own state"
# of each input there are five of these, and they say only that nobody marked a dimension as dynamic
FOLDED = (
    "DIMENSION_DYNAMIC_MARKING_GUARD",
    "NO_TENSOR_ALIASING",
    "NO_HASATTR",
    "TYPE_MATCH",
    "OBJECT_ALIASING",
)
OFTEN_LONG = 160

_NODE = re.compile(r"^(?P<bars>[| ]*)\+- (?P<kind>\w+)(?:: (?P<text>.*))?$")
_SOURCE = re.compile(r"^source=(.+?), accessed_by=")
_PLACE = re.compile(r"  # (?P<code>.*?)\s+# (?P<place>\S.*)$")
_ADDRESS = re.compile(r", \d{9,}(?=\))|_\d{12,}| at 0x[0-9a-f]+")
_DEFINED = re.compile(r"type=<class '(?:module|type|code|function|builtin_function_or_method|method)'>")
_ARGUMENT = re.compile(r"L\['\w+'\]")
_HINT = re.compile(r"\s*\(HINT: .*\)$")
_TENSOR = re.compile(
    r"check_tensor\(.*?DispatchKeySet\([^)]*\), torch\.(?P<dtype>\w+), device=(?P<device>[^,]+),"
    r" requires_grad=(?P<grad>\w+), size=(?P<size>\[.*?\]), stride=(?P<stride>\[.*?\])\)"
)


@dataclass(frozen=True)
class Guard:
    """One guard.

    Args:
        kind: Dynamo's.
        protects: What it is about, such as `L['x']`.
        test: What has to hold.
        line: The program's line that needs it; '' for none.
        minor: Whether it is one of the many that rarely fail: of torch's state, of modules and what they define.
    """

    kind: str
    protects: str
    test: str
    line: str = ""
    minor: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.test}" + (f"    # {self.line}" if self.line else "")


def parse(tree: str) -> list[Guard]:
    """Parse a tree of guards, torch's `dynamo_cpp_guards_str`, in the order in which they are checked.

    >>> tree = "+- RootGuardManager\\n| +- GuardManager: source=G['k'], accessed_by=X, type=<class 'int'>\\n"
    >>> print(*parse(tree + "| | +- EQUALS_MATCH: G['k'] == 3   # return y * k  # model.py:25 in f"))
    EQUALS_MATCH: G['k'] == 3    # return y * k
    """
    found: list[Guard] = []
    above: list[tuple[int, str]] = []  # the managers around this line, by depth
    for line in tree.splitlines():
        node = _NODE.match(line)
        if not node:
            continue
        depth, kind, text = len(node["bars"]), node["kind"], node["text"] or ""
        while above and above[-1][0] >= depth:
            above.pop()
        if kind.endswith("Manager"):
            source = _SOURCE.match(text)
            above.append((depth, _ADDRESS.sub("", source[1]) if source else GLOBAL))
            continue
        at = _PLACE.search(text)
        test = _HINT.sub("", _ADDRESS.sub("", text[: at.start()] if at else text.split("  # ")[0])).strip()
        if tensor := _TENSOR.match(test):
            grad = ", requires grad" if tensor["grad"] == "True" else ""
            device = "" if tensor["device"] == "None" else f" on {tensor['device']}"
            test = f"{tensor['dtype']} {tensor['size']}, stride {tensor['stride']}{device}{grad}"
        protects = above[-1][1] if above else GLOBAL
        if protects == GLOBAL and (argument := _ARGUMENT.search(test)):
            protects = argument[0]  # a guard on sizes stands at the root of the tree
        code = at["code"].strip() if at and protects != GLOBAL else ""
        rarely = kind in FOLDED or protects == GLOBAL or "__builtins_dict__" in protects
        rarely = rarely or (kind == "ID_MATCH" and bool(_DEFINED.search(test)))
        found.append(Guard(kind, protects, rewrite(test), code, rarely))
    modules = tuple(g.protects for g in found if g.kind == "ID_MATCH" and "type=<class 'module'>" in g.test)
    return [replace(g, minor=True) if g.protects.startswith(modules) else g for g in found]


def group(tree: str) -> str:
    """The guards of a tree as text: a paragraph for each thing they protect, with a count of those that rarely fail."""
    groups: dict[str, list[Guard]] = {}
    for guard in parse(tree):
        groups.setdefault(guard.protects, []).append(guard)
    lines: list[str] = []
    quiet: list[str] = []
    for protects, guards in groups.items():
        told = [str(g) for g in guards if not g.minor]
        left = len(guards) - len(told)
        if not told:
            quiet.append(f"{protects} ({left})")
            continue
        lines.append(protects)
        lines += [f"    {text if len(text) <= OFTEN_LONG else text[:OFTEN_LONG] + ' ...'}" for text in told]
        if left:
            lines.append(f"    ... and {left} more that rarely fail")
    if quiet:
        shown = ", ".join(quiet[:6]) + (f" and {len(quiet) - 6} more" if len(quiet) > 6 else "")
        lines.append(f"rarely fail: {shown}")
    return "\n".join(lines)
