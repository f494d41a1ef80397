"""The operations of an FX graph, parsed from its printed text, which can be sent between processes."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass

__all__ = ["Node", "nodes"]

_AT = re.compile(r"^\s*# (?:recompute: \w+ )?(?:File: )?(?P<at>\S[^,]*?), code: (?P<code>.*)$")
_ASSIGNED = re.compile(r'^\s*(?P<name>\w+)(?:\s*:\s*"(?P<shape>[^"]*)")?\s*=\s*(?P<value>.+?);?\s*$')
_INPUT = re.compile(r'(?P<name>\w+)\s*:\s*"(?P<shape>[^"]*)"')
_COLLECTIVE = re.compile(
    r"_c10d_functional(?:_autograd)?[.:]+(?!wait_tensor|_wrap)\w+|\bdist(?:ributed)?\.all_"
)
_UNNAMED = re.compile(r"^class <\w+>", re.MULTILINE)  # what torch calls a graph made by a lambda
_BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**", ast.FloorDiv: "//",
    ast.Mod: "%", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One operation of a graph. `inputs` are names of its nodes; `constants` is the text of all other arguments."""

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    constants: str = ""
    shape: str = ""
    at: str = ""  # 'In [5]:3 in f', where the trace says so
    code: str = ""  # the reader's line
    kind: str = "op"  # input, op, collective, wait or output
    text: str = ""

    @property
    def short(self) -> str:
        """The operation without its namespace and overload: `mm`, `all_reduce`, `relu`, `+`."""
        if self.op in _BINARY.values():
            return self.op
        parts = [part for part in self.op.split(".") if part]
        if parts[:2] == ["torch", "ops"] and len(parts) > 3:  # torch.ops.aten.pow.Tensor_Scalar
            return parts[3]
        return parts[-1] if parts else self.op


def nodes(text: str) -> list[Node]:
    """Parse the nodes of a graph that `print_readable` printed, in order; several graphs follow each other.

    >>> code = '''class GraphModule(torch.nn.Module):
    ...     def forward(self, x: "f32[4]"):
    ...         # File: In [5]:3 in f, code: y = x.sin() * 2
    ...         sin: "f32[4]" = torch.ops.aten.sin.default(x);  x = None
    ...         return (sin,)'''
    >>> [(n.name, n.short, n.inputs, n.at) for n in nodes(code)]
    [('x', 'input', (), ''), ('sin', 'sin', ('x',), 'In [5]:3 in f'), ('output', 'output', ('sin',), '')]
    """
    if not text.strip():
        return []
    lines = text.splitlines()
    places = _places(lines)
    try:
        tree = ast.parse(_UNNAMED.sub("class graph", textwrap.dedent(text)))
    except (SyntaxError, ValueError, RecursionError):
        return _by_line(lines, places)
    found: list[Node] = []
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        found += _of_function(function, lines, places)
    return found


def _places(lines: list[str]) -> list[tuple[str, str]]:
    """For each line of the text, the reader's place and code that the comment above it names."""
    now, found = ("", ""), []
    for line in lines:
        if at := _AT.match(line):
            now = (at["at"].strip(), at["code"].strip())
        elif line.strip().startswith(("def ", "class ", "return")):
            now = ("", "")
        found.append(now)
    return found


def _of_function(function: ast.FunctionDef, lines: list[str], places: list[tuple[str, str]]) -> list[Node]:
    alias: dict[str, str] = {}
    found: list[Node] = []

    def add(name: str, op: str, value: ast.AST | None, shape: str, line: int, kind: str = "") -> None:
        inputs, constants = _arguments(value, alias) if value is not None else ((), "")
        at, code = places[line - 1] if kind not in ("input", "output") else ("", "")
        kind = kind or ("collective" if _COLLECTIVE.search(op) else "wait" if "wait_tensor" in op else "op")
        text = lines[line - 1].strip().split(";")[0] if kind not in ("input", "output") else ""
        alias[name] = name
        found.append(Node(name, op, inputs, constants, shape, at, code, kind, text))

    for argument in function.args.args[1:]:
        if not isinstance(argument.annotation, ast.Constant):
            continue  # the joint graph takes lists, and names their tensors in its body
        add(argument.arg, "input", None, str(argument.annotation.value), argument.lineno, "input")
    for statement in function.body:
        if isinstance(statement, ast.Return):
            add("output", "output", statement.value, "", statement.lineno, "output")
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            shape = str(getattr(statement.annotation, "value", ""))
            if statement.value is None:
                add(statement.target.id, "input", None, shape, statement.lineno, "input")
            else:
                add(statement.target.id, _op(statement.value), statement.value, shape, statement.lineno)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            if isinstance(statement.value, ast.Constant) and statement.value.value is None:
                continue  # `x = None` frees a value
            names = [t.id for t in statement.targets if isinstance(t, ast.Name)]
            if isinstance(statement.value, ast.Name) and statement.value.id in alias:
                alias |= dict.fromkeys(names, alias[statement.value.id])
            else:
                add(names[0], _op(statement.value), statement.value, "", statement.lineno)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            add(f"line{statement.lineno}", _op(statement.value), statement.value, "", statement.lineno)
    return found


def _op(value: ast.AST) -> str:
    """What a value is made by: a function's dotted name, '.relu' for a method, an operator, or 'get'."""
    if isinstance(value, ast.Call):
        of = value.func
        if isinstance(of, ast.Attribute) and not ast.unparse(of).startswith(
            ("torch.", "self.", "fx_pytree.")
        ):
            return f".{of.attr}" if isinstance(of.value, ast.Name) else ast.unparse(of)
        return ast.unparse(of)
    if isinstance(value, ast.BinOp):
        return _BINARY.get(type(value.op), type(value.op).__name__)
    if isinstance(value, ast.UnaryOp):
        return "neg" if isinstance(value.op, ast.USub) else type(value.op).__name__.lower()
    if isinstance(value, ast.Compare):
        return ast.unparse(ast.Compare(ast.Name("_"), value.ops, [ast.Name("_")])).replace("_", "").strip()
    return "getitem" if isinstance(value, ast.Subscript) else "get"


def _arguments(value: ast.AST, alias: dict[str, str]) -> tuple[tuple[str, ...], str]:
    """The nodes that a value is made from, in order, and its text with `_` in their place."""
    inputs: list[str] = []

    class Blank(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            if node.id in alias:
                inputs.append(alias[node.id])
                return ast.Name("_", node.ctx)
            return node

    # parsed once more: what is blanked out here is still needed by the caller
    blank = Blank().visit(ast.parse(ast.unparse(value), mode="eval").body)
    return tuple(inputs), ast.unparse(blank)


def _by_line(lines: list[str], places: list[tuple[str, str]]) -> list[Node]:
    """For a text that is not quite Python: names and operations as far as a pattern finds them."""
    found: list[Node] = []
    known: set[str] = set()
    for number, line in enumerate(lines):
        if line.lstrip().startswith("#"):
            continue
        if line.strip().startswith("return"):
            used = tuple(n for n in re.findall(r"\b[A-Za-z_]\w*\b", line) if n in known)
            found.append(Node("output", "output", used, kind="output"))
            continue
        assigned = _ASSIGNED.match(line.split(";")[0])
        if not assigned:
            for given in _INPUT.finditer(line):
                known.add(given["name"])
                found.append(Node(given["name"], "input", shape=given["shape"], kind="input"))
            continue
        value = assigned["value"]
        op = value.split("(")[0].strip()
        inputs = tuple(n for n in re.findall(r"\b[A-Za-z_]\w*\b", value.partition("(")[2]) if n in known)
        kind = "collective" if _COLLECTIVE.search(op) else "wait" if "wait_tensor" in op else "op"
        at, code = places[number]
        text = line.strip().split(";")[0]
        found.append(Node(assigned["name"], op, inputs, "", assigned["shape"] or "", at, code, kind, text))
        known.add(assigned["name"])
    return found
