"""Messages of one batch that pair by their order alone: with two ranks the next and the previous one are the same."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

import pandas as pd

from oddrank import places
from oddrank.live import messages
from oddrank.look.finding import Finding
from oddrank.look.syntax import around, called_at, parents

__all__ = ["TYPES", "Batches", "crossed"]

TYPES = {"rank": "int64", "place": "str", "peer": "int64", "tensor": "str", "first": "str", "second": "str"}
RING = 4  # ranks of the ring for which the program's own expressions are evaluated


class _Op(NamedTuple):
    """A message of a batch, and the expression of the program that says with whom."""

    sends: bool
    peer: int
    alike: tuple[Any, ...]  # what else has to be the same for two messages to pair in either order
    tensor: str
    whom: str


class Batches:
    """Notes calls of `batch_isend_irecv` in which two messages to one peer cross."""

    def __init__(self) -> None:
        self._seen: set[tuple[CodeType, int]] = set()
        self._rows: dict[tuple[Any, ...], None] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note them in a block."""
        messages.batches.append(self._batch)
        try:
            yield
        finally:
            messages.batches.remove(self._batch)

    def _batch(self, ops: Sequence[Any], caller: Any) -> None:
        key = caller.f_code, caller.f_lasti
        if key in self._seen:
            return
        self._seen.add(key)
        with contextlib.suppress(Exception):  # the program goes on
            self._look(ops, caller)

    def _look(self, ops: Sequence[Any], caller: Any) -> None:
        file = caller.f_code.co_filename
        sites = [] if places.is_library(file) else _sites(file, caller)
        told = [_told(op, sites, caller.f_locals) for op in ops]
        if found := _crossing(told):
            one, other = found
            if _opposite(one.whom, other.whom, parents(file)):
                place = places.place(file, caller.f_lineno, caller.f_code.co_name)
                self._rows[place, one.peer, one.tensor, one.whom, other.whom] = None

    def table(self) -> pd.DataFrame:
        """Make the table of these batches on one rank; its columns are those of `TYPES`, without rank."""
        return pd.DataFrame(list(self._rows), columns=[name for name in TYPES if name != "rank"])


def _told(op: Any, sites: Sequence[ast.Call], held: Mapping[str, Any]) -> _Op:
    """Describe a message, with the expression of its peer: that of the calls that gave it a tensor of this name."""
    tensor, sends = op.tensor, op.op.__name__ == "isend"
    said = f"{str(tensor.dtype).partition('.')[2]} {list(tensor.shape)}"
    mine = [
        one
        for one in sites
        if _sends(one) == sends and held.get(_name(_argument(one, 1, "tensor"))) is tensor
    ]
    whom = {ast.unparse(_argument(one, 2, "peer")) for one in mine}
    return _Op(sends, int(op.peer), (said, op.tag, id(op.group)), said, whom.pop() if len(whom) == 1 else "")


def _sites(file: str, caller: Any) -> list[ast.Call]:
    """The calls that make messages in the function that sends a batch."""
    above = parents(file)
    batch = called_at(file, caller.f_code, caller.f_lasti)
    scope = around(batch, above, (ast.FunctionDef, ast.AsyncFunctionDef))
    return [node for node in ast.walk(scope) if isinstance(node, ast.Call) and _name(node.func) == "P2POp"]


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _sends(site: ast.Call) -> bool:
    return _name(_argument(site, 0, "op")) == "isend"


def _argument(site: ast.Call, number: int, name: str) -> ast.expr:
    named = {word.arg: word.value for word in site.keywords}
    return site.args[number] if len(site.args) > number else named.get(name, ast.Constant(""))


def _crossing(ops: Sequence[_Op]) -> tuple[_Op, _Op] | None:
    """Two messages to one peer that it receives in the order in which they were sent, each for the other one."""
    sends, receives = ([one for one in ops if one.sends == way] for way in (True, False))
    for i, one in enumerate(sends):
        for other in sends[i + 1 :]:
            known = one.whom and other.whom and one.whom != other.whom
            same = (one.peer, one.alike) == (other.peer, other.alike)
            taken = [r.whom for r in receives if (r.peer, r.alike) == (one.peer, one.alike)]
            if known and same and taken == [one.whom, other.whom]:
                return one, other
    return None


def _opposite(one: str, other: str, above: dict[ast.AST, ast.AST]) -> bool:
    """Whether two expressions of the program name the neighbours on both sides of a ring."""
    shifts = _shift(one, above), _shift(other, above)
    return None not in shifts and shifts[0] != shifts[1] and sum(shifts) % RING == 0  # type: ignore[arg-type]


def _shift(text: str, above: dict[ast.AST, ast.AST]) -> int | None:
    """By how many ranks `(rank + 1) % size`, or a name that is bound to such an expression, goes round a ring."""
    node = ast.parse(text, mode="eval").body
    bound = [node] if isinstance(node, ast.BinOp) else list(_bound(_name(node), above))
    found = {_turn(one) for one in bound}
    return found.pop() if len(found) == 1 else None


def _bound(name: str, above: dict[ast.AST, ast.AST]) -> Iterator[ast.expr]:
    for node in above:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            yield from (to for of, to in pairs if _name(of) == name)


def _turn(node: ast.expr) -> int | None:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)):
        return None
    size = ast.dump(node.right)

    def of(part: ast.expr) -> int:
        if ast.dump(part) == size:
            return RING
        if isinstance(part, ast.Constant) and isinstance(part.value, int):
            return part.value
        if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Add, ast.Sub)):
            sign = 1 if isinstance(part.op, ast.Add) else -1
            return of(part.left) + sign * of(part.right)
        return 0  # the rank

    return of(node.left) % RING


def crossed(table: pd.DataFrame) -> list[Finding]:
    """Describe these batches, each line once.

    Args:
        table: What all ranks noted, with the columns of `TYPES`.
    """
    found = []
    for row in table.drop_duplicates("place").itertuples():
        said = f"two messages to rank {row.peer} cross in one batch: the ones to `{row.first}` and to `{row.second}`,"
        said += f" which are the same rank here, have one shape ({row.tensor}) and one tag"
        why = f"such messages pair by their order: what is sent to `{row.first}` arrives where the peer receives from"
        why += f" `{row.first}`, and with more ranks it arrives as the message from `{row.second}`"
        fix = "give each direction a tag of its own (NCCL ignores tags), or a batch of its own; or receive in the"
        fix += " opposite order of the sends"
        found.append(Finding(str(row.place), said, why, fix))
    return found
