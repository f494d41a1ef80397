"""Stream graphs that are shipped with labkit, for a torch that compiles no streams: kept by what they were made of.

The file holds what the child processes of `captured.py` returned for the functions of the lessons;
`python -m tools.recapture` makes it. A shipped graph is given out for the very function and
arguments that it was made of and for no other, and says so in a line of its own.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from oddrank.files import write

from course.shared.streams.graph import GraphNode, StreamGraph, StreamGraphs
from labkit import files, torch_compat

__all__ = [
    "FILE",
    "LATER",
    "SINCE",
    "fetch",
    "key",
    "later",
    "recording",
    "save",
    "save_later",
    "seen",
    "ships",
]

FILE = files.ours("data/captured/stream_graphs.json")
LATER = files.ours("data/captured/later_torch.json")
SINCE = "2.12"
_recorded: list[dict[str, Any]] = []  # the records that are open; the last one is written


def key(look: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """What a graph is kept by: how it was looked for, the source of its functions, and shapes, not values, of tensors.

    Comments and spaces in a function do not count, its name and what it does count.

    >>> def fn(x):
    ...     return x + 1  # a comment
    >>> key(len, (fn, 1)) == key(len, (fn, 1)), key(len, (fn, 1)) == key(len, (fn, 2))
    (True, False)
    """
    text = json.dumps([look.__name__, *map(_plain, arguments)])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def fetch(look: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The shipped result of a look into a child process, labelled. Raises UnsupportedTorch where there is none."""
    lacking = f"torch {torch.__version__} compiles no streams: torch {SINCE} is the first that does, as beta"
    try:
        shipped = json.loads(FILE.read_text(encoding="utf-8"))
    except OSError:
        raise torch_compat.UnsupportedTorch(f"{lacking}, and no captured graphs are shipped here") from None
    found = shipped["graphs"].get(key(look, arguments))
    if found is None:
        names = ", ".join(_names(arguments)) or look.__name__.strip("_")
        raise torch_compat.UnsupportedTorch(
            f"{lacking}. The graphs shipped with labkit are of the lessons' own functions as they stand there; "
            f"there is none of {names} with these arguments"
        )
    print(f"{shipped['label']}: {lacking}", flush=True)
    return _marked(_decode(found["found"]), shipped["torch"], shipped["label"])


def later() -> dict[str, Any]:
    """What lesson 07 shows of a later torch.

    Returns:
        `label`, `torch`, `hand_over` (the forward graph of that function), and `kernels`: the (stream, kernel) pairs of
        Inductor's code by function. `python -m tools.recapture later`, under the torch to be shown, makes it anew.
    """
    found = json.loads(LATER.read_text(encoding="utf-8"))
    return found | {"hand_over": _marked(_decode(found["hand_over"]), found["torch"], found["label"])}


def save_later(graph: StreamGraph, kernels: dict[str, Any], made: str, date: str) -> Path:
    """Write what `later` reads; `made` is the version of the torch that made it."""
    body = {"label": f"captured with torch {made}, {date}", "torch": made, "kernels": kernels}
    text = json.dumps(body | {"hand_over": _encode(graph)}, indent=1, ensure_ascii=False)
    return write(LATER, (text + "\n").encode())


@contextlib.contextmanager
def recording() -> Iterator[dict[str, Any]]:
    """A context that fills the dict it gives with what every look into a child process found, ready to be shipped."""
    record: dict[str, Any] = {}
    _recorded.append(record)
    try:
        yield record
    finally:
        _recorded.remove(record)


def seen(look: Callable[..., Any], arguments: tuple[Any, ...], found: Any) -> None:
    """Keep a result where a record is open."""
    if _recorded:
        of = " ".join([look.__name__.strip("_"), *_names(arguments)])
        _recorded[-1][key(look, arguments)] = {"of": of, "found": _encode(found)}


def save(record: dict[str, Any], made: str, date: str, path: Path = FILE) -> Path:
    """Write a record to be shipped; `made` is the version of the torch that made it."""
    body = {
        "label": f"captured with torch {made}, {date}",
        "torch": made,
        "date": date,
        "graphs": dict(sorted(record.items())),
    }
    text = json.dumps(body, ensure_ascii=False)
    return write(path, (text + "\n").encode())


# --- what was asked for, as text ---


def _names(arguments: Any) -> list[str]:
    found = []
    for one in arguments:
        if isinstance(one, (tuple, list)):
            found += _names(one)
        elif inspect.isfunction(one):
            found.append(one.__name__)
    return found


def _plain(value: Any) -> Any:
    if inspect.isfunction(value):
        try:
            source = textwrap.dedent(inspect.getsource(value))
            return ast.unparse(ast.parse(source))
        except (OSError, SyntaxError):  # no source: it is nobody's lesson
            return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if hasattr(value, "requires_grad"):
        return [list(value.shape), str(value.dtype), bool(value.requires_grad)]
    if hasattr(value, "edited"):  # a lesson's program
        return list(value.edited)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


# --- what was found, as JSON ---


CLASSES: dict[str, type] = {}


def ships(*classes: type) -> None:
    """State which dataclasses a look may give: those that may be read from what is shipped, by their name."""
    CLASSES.update({one.__name__: one for one in classes})


ships(GraphNode, StreamGraph, StreamGraphs)


def _encode(value: Any) -> Any:
    """Data as JSON that says which lists were tuples, and which were objects."""
    if is_dataclass(value) and not isinstance(value, type):
        defaults = {f.name: f.default for f in fields(value)}
        held = {f: getattr(value, f) for f in defaults if getattr(value, f) != defaults[f]}
        return {"is": type(value).__name__, "has": {name: _encode(one) for name, one in held.items()}}
    if isinstance(value, tuple):
        return {"is": "tuple", "has": [_encode(one) for one in value]}
    if isinstance(value, dict):
        return {"is": "dict", "has": {name: _encode(one) for name, one in value.items()}}
    return [_encode(one) for one in value] if isinstance(value, list) else value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    kind, held = value["is"], value["has"]
    if kind == "tuple":
        return tuple(_decode(one) for one in held)
    if kind == "dict":
        return {name: _decode(one) for name, one in held.items()}
    return CLASSES[kind](**{name: _decode(one) for name, one in held.items()})


def _marked(found: Any, made: str, label: str) -> Any:
    """Graphs that say that they were not made here, and by which torch."""
    if isinstance(found, StreamGraph):
        return replace(found, torch=made, label=label)
    if isinstance(found, StreamGraphs):
        three: dict[str, Any] = {
            name: tuple(_marked(one, made, label) for one in getattr(found, name))
            for name in ("dynamo", "forward", "backward")
        }
        return replace(found, **three)
    return found
