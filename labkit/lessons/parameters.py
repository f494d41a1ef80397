"""The parameters of a lesson: the cell of its notebook that is tagged `parameters`, read as data.

A line of that cell is `NAME = value  # meaning; rule`. The value is a number, a text, True or False, or a list of one
of these. The rule is `LOW to HIGH` for numbers or `of WORD, WORD` for texts, and may be left out. A long line
may end in `# fmt: skip`. papermill reads no rules.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oddrank import bounds

__all__ = ["TAG", "Parameter", "chosen", "parameters"]

TAG = "parameters"
KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a word"}
_LINE = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*) = (?P<value>.+?)  # (?P<said>.+)")
_RANGE = re.compile(r"(?P<low>\S+) to (?P<high>\S+)")


@dataclass(frozen=True)
class Parameter:
    """One parameter: its default, what it means with its unit, the bounds of its numbers or the words that it takes."""

    name: str
    default: Any
    meaning: str
    least: float | None = None
    most: float | None = None
    words: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """What a value has to be, in words.

        >>> Parameter("LINKS", ["gloo"], "more links", words=("gloo", "shm")).rule
        'one or more of gloo, shm, with commas in between'
        """
        many = isinstance(self.default, list)
        if self.words:
            return f"one {'or more ' * many}of {', '.join(self.words)}" + ", with commas in between" * many
        kind = type(self.default[0] if many else self.default)
        rule = KINDS[kind]
        if self.least is not None and self.most is not None:
            rule = bounds.rule(kind, self.least, self.most)
        return rule + ", or several with commas in between" * many

    def read(self, text: str) -> Any:
        """Convert what was typed to the default's type.

        Raises:
            ValueError: it breaks the rule; the message names both.

        >>> Parameter("SIZES", [4, 8], "bytes", 1, 64).read("16,32")
        [16, 32]
        >>> Parameter("BLOCKS", 40, "transformer blocks", 1, 1000).read("0")
        Traceback (most recent call last):
        ValueError: BLOCKS has to be a whole number from 1 to 1000, got '0'
        """
        try:
            if isinstance(self.default, list):
                return [self._one(part.strip(), type(self.default[0])) for part in text.split(",")]
            return self._one(text, type(self.default))
        except ValueError:
            raise ValueError(f"{self.name} has to be {self.rule}, got {bounds.short(text)}") from None

    def _one(self, text: str, kind: type) -> Any:
        allowed = ("True", "False") if kind is bool else self.words
        if allowed and text not in allowed:
            raise ValueError
        if kind in (bool, str):
            return text == "True" if kind is bool else text
        if self.least is None or self.most is None:
            return kind(text)
        return bounds.read(text, kind, self.least, self.most)


def parameters(path: Path) -> dict[str, Parameter]:
    """The parameters of a notebook by name, in the order of the cell; empty where no cell has the tag.

    Raises:
        ValueError: a line of the cell is not in form, or a default breaks its own rule; the message names the line.

    >>> from labkit import files
    >>> parameters(files.lessons()[4])["BLOCKS"].default
    40
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    tagged = [cell for cell in notebook["cells"] if TAG in cell.get("metadata", {}).get("tags", ())]
    lines = [line for cell in tagged for line in "".join(cell["source"]).splitlines() if line.strip()]
    found = [_parse(line, path.stem) for line in lines]
    return {parameter.name: parameter for parameter in found}


def chosen(known: Mapping[str, Parameter], given: Mapping[str, str], of: str) -> dict[str, Any]:
    """The values of the parameters that were typed; `of` names in an error what they belong to.

    Raises:
        ValueError: a name is unknown, or a value breaks its rule.
    """
    for name in given:
        if name not in known:
            raise ValueError(f"{of} has no parameter {name!r}: it has {', '.join(known) or 'none'}")
    return {name: known[name].read(text) for name, text in given.items()}


def _parse(line: str, lesson: str) -> Parameter:
    wrong = f"the parameters of lesson {lesson}: {line!r}"
    form = _LINE.fullmatch(line.rstrip().removesuffix("# fmt: skip").rstrip())
    if not form:
        raise ValueError(f"{wrong} is not in the form NAME = value  # meaning; rule")
    try:
        value = ast.literal_eval(form["value"])
    except (ValueError, SyntaxError):
        value = None
    each = value if isinstance(value, list) else [value]
    if not each or any(type(one) not in KINDS or type(one) is not type(each[0]) for one in each):
        raise ValueError(f"{wrong}: the value is not a number, a text, a bool, or a list of one of these")
    meaning, semicolon, rule = form["said"].rpartition("; ")
    span = _RANGE.fullmatch(rule)
    if semicolon and rule.startswith("of "):
        made = Parameter(form["name"], value, meaning, words=tuple(rule.removeprefix("of ").split(", ")))
    elif semicolon and span:
        made = Parameter(form["name"], value, meaning, float(span["low"]), float(span["high"]))
    else:
        made = Parameter(form["name"], value, form["said"])
    try:
        for one in each:
            made._one(str(one), type(one))
    except ValueError:
        raise ValueError(f"{wrong}: {one!r} is not {made.rule}") from None
    return made
