"""Which torch names a package asks for, read off its own calls of `require`, `find`, `replaced` and `patched`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from oddrank.torch_names.names import TRIED, find, within

__all__ = ["PrivateName", "private_names"]

HERE = Path(__file__).parent


@dataclass(frozen=True)
class PrivateName:
    """A private or version-dependent torch name that a function of this package asks for.

    Args:
        function: The function.
        does: What it does, the first sentence of its docstring.
        names: The dotted name; of several, one is enough.
        since: The first torch version that has it.
        until: The last one.
        optional: The function works without it as well.

    >>> PrivateName("dynamo_reset", "", ("torch._dynamo.reset",), "2.11", "2.15", False).there
    True
    """

    function: str
    does: str
    names: tuple[str, ...]
    since: str
    until: str
    optional: bool

    def __str__(self) -> str:
        return " or ".join(self.names)

    @property
    def there(self) -> bool:
        """Say whether the installed torch has it."""
        return any(find(name, self) is not self for name in self.names)

    @property
    def in_range(self) -> bool:
        """Say whether the installed torch is one of those that are said to have it."""
        return within(metadata.version("torch"), self.since, self.until)


def private_names(*folders: Path) -> list[PrivateName]:
    """Read off sources which torch names their functions ask for, and of which versions.

    Args:
        folders: Of packages; without one, this package.

    >>> str(next(name for name in private_names() if name.function == "dynamo_reset"))
    'torch._dynamo.reset'
    """
    found: list[PrivateName] = []
    for path in (path for folder in folders or [HERE] for path in sorted(folder.glob("*.py"))):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        for function in [node for name, node in functions.items() if not name.startswith("_")]:
            does = " ".join((ast.get_docstring(function) or "").split()).partition(". ")[0].rstrip(".")
            found += [PrivateName(function.name, does, *asked) for asked in _asked(function, functions)]
    return found


def _asked(function: ast.AST, functions: dict[str, ast.FunctionDef]) -> Iterator[tuple[Any, ...]]:
    """What a function asks for by a literal name, itself or in the private functions that it calls."""
    for node in ast.walk(function):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        called = node.func.id
        if called.startswith("_") and functions.get(called, function) is not function:
            yield from _asked(functions[called], functions)
        low, high = TRIED
        names = tuple(str(arg.value) for arg in node.args if isinstance(arg, ast.Constant))
        said = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        if names and called == "patched":  # its keywords are settings
            for setting in said:
                yield (f"torch._{names[0]}.{setting}",), low, high, False
        elif names and called in ("require", "replaced", "find"):
            names = names if called == "require" else names[:1]
            yield names, said.get("since", low), said.get("until", high), called == "find"
