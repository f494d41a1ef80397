"""The order in which compiled graphs, plain Python between them, and resume functions run in one call."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from labkit.graphs.frame import Frame, Frames

__all__ = ["Outline", "Piece", "outline"]

_GRAPH = re.compile(r"^__compiled_fn_\d+$")
_OWN = ("slice", "list", "tuple", "dict")  # with these the new code moves values around
_RESUME = re.compile(r"^__resume_at_\d+_\d+$")
_LOADED = re.compile(r"\((?:NULL \+ )?(__compiled_fn_\d+|__resume_at_\d+_\d+)(?: \+ NULL)?\)$", re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """One step of a frame's new bytecode.

    Args:
        kind: graph, python or resume.
        text: The code.
        frame: The id of the frame where a resume function goes on.
    """

    kind: str
    text: str
    frame: str = ""


@dataclass(frozen=True)
class Outline:
    """The steps of each frame's new bytecode in order: `pieces` by frame id."""

    frames: tuple[Frame, ...]
    pieces: dict[str, tuple[Piece, ...]]

    def __str__(self) -> str:
        lines = []
        words = {"graph": "the compiled graph", "python": "plain Python", "resume": "goes on in"}
        for frame in self.frames:
            lines.append(frame.title)
            for piece in self.pieces[frame.id]:
                to = f" = frame {piece.frame}" if piece.frame else ""
                lines.append(f"    {words[piece.kind]:18}  {piece.text}{to}")
        return "\n".join(lines)

    __repr__ = __str__


def outline(frames: Frames) -> Outline:
    """List, for each frame, the compiled graphs that it calls, what it leaves to Python, and the frame that follows.

    Where depyf cannot decompile a frame (one that ends in a branch on data, for instance), its bytecode is read: it
    tells the graphs and where it goes on, and of plain Python only the line that broke the graph is listed. Frames
    without these stages are left out.

    Args:
        frames: The frames of one rank.

    Raises:
        ValueError: For frames of several ranks.
    """
    if len(frames.ranks) > 1:
        raise ValueError(f"outline takes the frames of one rank: frames.of_rank({frames.ranks[0]})")
    known = [frame for frame in frames if "decompiled" in frame.raw and frame.has_code]
    found: dict[str, tuple[Piece, ...]] = {}
    for frame in known:
        try:
            body = ast.parse(frame.raw["decompiled"]).body
        except SyntaxError:
            body = []
        # where there is no Python form, this stage is the bytecode with a comment above
        pieces = _pieces(body, frame) if body else _loaded(frame)
        found[frame.id] = tuple(pieces)
    return Outline(tuple(known), found)


def _pieces(body: list[ast.stmt], frame: Frame) -> list[Piece]:
    pieces: list[Piece] = []
    seen: set[int] = set()
    for node in _in_order(body):
        if id(node) in seen or not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        text = ast.unparse(node)
        if _GRAPH.match(name):
            pieces.append(Piece("graph", _cut(text)))
        elif _RESUME.match(name):
            pieces.append(Piece("resume", name, frame.goes_on.get(name, "")))
        elif not (name in _OWN or isinstance(node.func, ast.Attribute) and node.func.attr == "extend"):
            pieces.append(Piece("python", _cut(text)))
        seen |= {id(inner) for inner in ast.walk(node)}
    return pieces


def _loaded(frame: Frame) -> list[Piece]:
    """What can be told from the names that bytecode loads."""
    pieces: list[Piece] = []
    broke = frame.breaks
    for name in _LOADED.findall(frame.raw["decompiled"]):
        if _GRAPH.match(name):
            pieces.append(Piece("graph", f"{name}(...)"))
            continue
        if broke:
            line = re.search(rf"^ *{broke.line} ✗ (.+)$", frame.raw.get("source", ""), re.MULTILINE)
            pieces.append(Piece("python", _cut(line[1].strip() if line else broke.reason)))
            broke = None
        pieces.append(Piece("resume", name, frame.goes_on.get(name, "")))
    return pieces


def _in_order(body: list[ast.stmt]) -> list[ast.AST]:
    found: list[ast.AST] = []

    def walk(node: ast.AST) -> None:
        found.append(node)
        for child in ast.iter_child_nodes(node):
            walk(child)

    for statement in body:
        walk(statement)
    return found


def _cut(text: str, most: int = 90) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
