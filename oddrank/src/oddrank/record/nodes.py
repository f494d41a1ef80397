"""The operations of a graph, parsed from its printed text: text travels between processes, and a graph does not."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oddrank.places import rewrite

__all__ = ["AT", "COLLECTIVE", "Node", "nodes"]

COLLECTIVE = re.compile(r"_?c10d_functional(?:_autograd)?\.(?!wait_tensor|_wrap)(\w+?)(?:\.default)?$")
AT = re.compile(
    r"^\s*#(?>.*?\bFile: )(?>(.+?):(\d{1,9}) in )(?>(.+?), code: ?)(.*)$"
)  # AOTAutograd begins it with "recompute: ..."

_DECLARED = re.compile(r'\b(?>(\w+)) ?: "([^"]*)"')
_IN_PLACE = re.compile(r"(\w+)(?:\[.*\])? ([-+*/@|&^%<>]*)= .+")  # it returns its first operand
_MADE = re.compile(r'(?P<name>\w+)(?: ?: "(?P<shape>[^"]*)")? = (?P<value>.+)')
_CALL = re.compile(r"([\w.:]+)\(")
_OPERATOR = re.compile(r"[\w.()-]+ (?P<sign>[-+*/@<>=!|&^%]+) [\w.()-]+|(?P<unary>[-~]|not )[\w.]+")
_WORD = re.compile(r"'(?>(?:[^'\\]|\\.?)*)'?|\"[^\"]*\"?|(?<![\w.])([A-Za-z_]\w*)(?!\s*=[^=])")
_UNARY = {"-": "neg", "~": "invert", "not ": "not"}


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a printed graph, or its inputs and outputs.

    Args:
        name: Of the node.
        kind: 'input', 'op', 'read' (of an item or attribute), 'collective', 'wait' or 'output'.
        target: What it calls: a function's dotted name, '.relu' for a method, or the operator's sign.
        shape: The type of its result, with strides and device where torch prints them.
        inputs: The nodes that it takes, in order.
        constants: Its text with `_` for each of these.
        file, line, func, code: The program's line; empty where torch does not say.
        text: The node as it is printed.
    """

    name: str
    kind: str
    target: str
    shape: str = ""
    inputs: tuple[str, ...] = ()
    constants: str = ""
    file: str = ""
    line: int = 0
    func: str = ""
    code: str = ""
    text: str = ""

    @property
    def type(self) -> str:
        """The type of its result without strides and device: 'f32[4, 16]'."""
        found = re.match(r"\w+\[[^\]]*\]", self.shape)
        return found[0] if found else ""

    @property
    def at(self) -> str:
        """Its place in words: 'In [5]:3 in f'."""
        return f"{rewrite(f'{self.file}:{self.line}')} in {self.func}" if self.file else ""

    @property
    def short(self) -> str:
        """The operation without its namespace and overload: `mm`, `all_reduce`, `relu`, `+`."""
        parts = [part for part in self.target.split(".") if part]
        return parts[3] if parts[:2] == ["torch", "ops"] and len(parts) > 3 else parts[-1] if parts else ""

    @property
    def group(self) -> str:
        """The name of a collective's group."""
        return (re.findall(r"'([^']*)'", self.constants) or [""])[-1]


def nodes(text: str) -> list[Node]:
    """Parse a graph that `print_readable` printed; several graphs follow each other.

    Args:
        text: The graph, of any stage.

    >>> y, out = nodes('''class GraphModule(torch.nn.Module):
    ...     def forward(self, x: "f32[4]"):
    ...         # File: a.py:3 in f, code: y = x.sin() * 2
    ...         sin: "f32[4]" = torch.ops.aten.sin.default(x);  x = None
    ...         return (sin,)''')[1:]
    >>> y.short, y.inputs, y.at, out.inputs
    ('sin', ('x',), 'a.py:3 in f', ('sin',))
    """
    found: list[Node] = []
    known: dict[str, str] = {}  # a name in the text -> its node: `l_x_ = L_x_` is another name
    at: tuple[str, int, str, str] = ("", 0, "", "")
    returned: list[str] | None = None  # the inputs of an output that may have many lines

    def blank(value: str) -> tuple[tuple[str, ...], str]:
        inputs: list[str] = []

        def word(match: re.Match[str]) -> str:
            if match[1] not in known:
                return match[0]
            inputs.append(known[match[1]])
            return "_"

        blanked = _WORD.sub(word, value)
        return tuple(inputs), blanked

    def add(name: str, kind: str, target: str, shape: str = "", value: str = "", line: str = "") -> None:
        inputs, constants = blank(value)
        known[name] = name
        where = ("", 0, "", "") if kind == "input" else at
        found.append(Node(name, kind, target, shape, inputs, constants, *where, line.split(";")[0]))

    for line in [*text.splitlines(), ""]:
        line = line.strip()
        if returned is not None:
            if line and not line.startswith("class "):
                returned.append(line.partition("  #")[0])
                continue
            inputs, _ = blank(" ".join(returned))
            found.append(Node("output", "output", "output", inputs=inputs))
            returned = None
        if line.startswith("#"):
            if place := AT.match(line):
                at = place[1], int(place[2]), place[3], place[4]
            elif "No stacktrace" in line:
                at = ("", 0, "", "")
        elif line.startswith("def "):
            known, at = {}, ("", 0, "", "")
            for name, shape in _DECLARED.findall(line):
                add(name, "input", "input", shape)
        elif line.startswith("return"):
            returned = [line.partition("  #")[0]]
        elif " = " not in line:
            for name, shape in _DECLARED.findall(line):
                add(name, "input", "input", shape)
        elif line:
            first, _, rest = line.partition(";  ")
            made = _MADE.fullmatch(first)
            if made is None:
                changed, result = _IN_PLACE.fullmatch(first), _MADE.match(rest.partition(";")[0])
                if changed and result:
                    target = f"{changed[2]}=" if changed[2] else "setitem"
                    add(result["name"], "op", target, result["shape"] or "", first, first)
                continue
            name, shape, value = made["name"], made["shape"] or "", made["value"]
            if value in known:
                known[name] = known[value]
            elif value != "None":
                kind, target = _made_by(value, known)
                add(name, kind, target, shape, value, line)
    return found


def _made_by(value: str, known: dict[str, str]) -> tuple[str, str]:
    """The kind of a node and what it calls."""
    if call := _CALL.match(value):
        target = call[1]
        owner = target.partition(".")[0]
        if (
            owner in known or owner == "self"
        ):  # the name of a method's tensor, or of a module's place, says nothing
            target = f".{target.rpartition('.')[2]}"
        kind = "collective" if COLLECTIVE.search(target) else "wait" if "wait_tensor" in target else "op"
        return kind, target
    if sign := _OPERATOR.fullmatch(value):
        return "op", sign["sign"] or _UNARY[sign["unary"]]
    return "read", "getitem" if value.endswith("]") else "get"
