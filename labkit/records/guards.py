"""The guards of a compiled frame, parsed from the tree that Dynamo prints, and grouped by what they protect."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from labkit import places

__all__ = ["Guard", "group", "parse"]

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
    """One guard: Dynamo's kind, what it protects (`L['x']`), its test, and the line of code that needs it."""

    kind: str
    protects: str
    test: str
    line: str = ""
    minor: bool = False  # one of the many that rarely fail: of torch's state, of modules and what they define

    def __str__(self) -> str:
        return f"{self.kind}: {self.test}" + (f"    # {self.line}" if self.line else "")


def parse(tree: str) -> list[Guard]:
    """Parse a guard tree (the trace's `dynamo_cpp_guards_str`) into guards, in the order in which they are checked.

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
        if kind.endswith("GuardManager") or kind.endswith("Manager"):
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
        found.append(Guard(kind, protects, places.rewrite(test), code, rarely))
    modules = tuple(g.protects for g in found if g.kind == "ID_MATCH" and "type=<class 'module'>" in g.test)
    return [replace(g, minor=True) if g.protects.startswith(modules) else g for g in found]


def group(tree: str, minor: bool = False) -> str:
    """Format the guards of a tree, one paragraph for each thing that they protect.

    Args:
        tree: The tree as Dynamo prints it.
        minor: Show guards that rarely fail as well; without it they are counted.
    """
    groups: dict[str, list[Guard]] = {}
    for guard in parse(tree):
        groups.setdefault(guard.protects, []).append(guard)
    lines: list[str] = []
    quiet: list[str] = []
    for protects, guards in sorted(groups.items(), key=lambda item: item[0] == GLOBAL):
        told = [g for g in guards if minor or not g.minor]
        left = len(guards) - len(told)
        if not told:
            quiet.append(f"{protects} ({left})")
            continue
        lines.append(protects)
        for guard in told:
            text = str(guard)
            lines.append("    " + (text if len(text) <= OFTEN_LONG else text[:OFTEN_LONG] + " ..."))
        if left:
            lines.append(f"    ... and {left} more that rarely fail")
    if quiet:
        shown = ", ".join(quiet[:6]) + (f" and {len(quiet) - 6} more" if len(quiet) > 6 else "")
        lines.append(f"folded, because they rarely fail: {shown}")
    return "\n".join(lines)
