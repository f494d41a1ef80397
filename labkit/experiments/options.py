"""Command-line options of experiments, and checks of the ranks that an experiment gets."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    *("ALSO", "BLOCKS", "FRESH", "FULL", "ROUNDS", "Option"),
    *("add", "chosen", "number", "on_cpu", "switch", "text", "two_or_more", "whole", "words"),
]


@dataclass(frozen=True)
class Option:
    """A keyword of an experiment's `run` that the command line offers as `--name`.

    Without the option the default of `run` holds.

    Args:
        name: of the keyword.
        kind: type of the value; bool for a switch.
        help: what it is for.
        metavar: what `--help` calls the value.
        many: it may be given again; the values are passed as a tuple.
        among: the words that are allowed; empty for any.
        pattern: a regular expression that the text has to match.
        least, most: bounds of a number, both allowed.
    """

    name: str
    kind: type
    help: str
    metavar: str = "N"
    many: bool = False
    among: tuple[str, ...] = ()
    pattern: str = ""
    least: float = 0
    most: float = math.inf

    @property
    def said(self) -> str:
        """The help text of the option."""
        words = f"{self.help}: {', '.join(self.among)}" if self.among else self.help
        return f"{words}; may be given again" if self.many else words

    def read(self, text: str) -> Any:
        """Convert a text of the command line.

        Args:
            text: as typed.

        Returns:
            The value.

        Raises:
            ArgumentTypeError: the text breaks a rule; the message names it.

        >>> Option("blocks", int, "transformer blocks", least=1, most=9).read("4")
        4
        >>> Option("blocks", int, "transformer blocks", least=1, most=9).read("1" + 30 * "0")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: must be a whole number from 1 to 9, got '1000000000000000000000000000000'
        """
        if self.kind is str:
            if self.among and text not in self.among:
                raise argparse.ArgumentTypeError(f"unknown {text!r}: there is {', '.join(self.among)}")
            if self.pattern and not re.fullmatch(self.pattern, text):
                raise argparse.ArgumentTypeError(f"takes {self.help}, got {text!r}")
            return text
        try:
            value = self.kind(text)
        except ValueError:
            value = math.nan
        if not self.least <= value <= self.most:
            bounds = [str(bound).removesuffix(".0") for bound in (self.least, self.most)]
            rule = f"{'whole ' * (self.kind is int)}number from {bounds[0]} to {bounds[1]}"
            shown = text if len(text) <= 40 else f"{text[:37]}..."
            raise argparse.ArgumentTypeError(f"must be a {rule}, got {shown!r}")
        return value


def switch(name: str, help: str) -> Option:
    """Declare an option without a value."""
    return Option(name, bool, help)


def whole(name: str, help: str, most: int, least: int = 1) -> Option:
    """Declare an option that takes a whole number from `least` to `most`."""
    return Option(name, int, help, least=least, most=most)


def number(name: str, help: str, metavar: str, least: float, most: float) -> Option:
    """Declare an option that takes a number from `least` to `most`."""
    return Option(name, float, help, metavar, least=least, most=most)


def text(name: str, help: str, metavar: str, pattern: str) -> Option:
    """Declare an option that takes a text which matches a regular expression."""
    return Option(name, str, help, metavar, pattern=pattern)


def words(name: str, among: str, help: str = "only these", metavar: str = "NAME") -> Option:
    """Declare an option that takes one of several words and may be given again.

    Args:
        name: of the option.
        among: the words, separated by '|'.
        help: what the option is for.
        metavar: what `--help` calls the value.

    >>> words("dtype", "float32|bfloat16").among
    ('float32', 'bfloat16')
    """
    return Option(name, str, help, metavar, many=True, among=tuple(among.split("|")))


# options of several experiments: one object each, because one option has one meaning
BLOCKS = whole("blocks", "transformer blocks (default 40)", most=1000)
ROUNDS = whole("rounds", "timing rounds; fewer than 8 tell nothing", most=10_000)
ALSO = words("also", "nccl|gloo|shm|fake", "time on this backend as well", "BACKEND")
FULL = switch("full", "the whole grid, for patient readers")
FRESH = switch("fresh", "begin anew, whatever an interrupted sweep left")


def add(parser: argparse.ArgumentParser, declared: Mapping[str, Iterable[Option]]) -> None:
    """Add the options of all experiments to a parser, each with the names of those that take it.

    Args:
        parser: the parser.
        declared: options by experiment.

    Raises:
        ValueError: two experiments mean different things by one option.

    >>> parser = argparse.ArgumentParser()
    >>> add(parser, {"cliff": [Option("blocks", int, "transformer blocks")]})
    >>> parser.parse_args(["--blocks", "4"]).blocks
    4
    """
    takers: dict[str, list[str]] = {}
    known: dict[str, Option] = {}
    for experiment, options in declared.items():
        for option in options:
            if known.setdefault(option.name, option) != option:
                raise ValueError(f"option {option.name!r} of {experiment} has another meaning elsewhere")
            takers.setdefault(option.name, []).append(experiment)
    for name, option in known.items():
        said: dict[str, Any] = {
            "help": f"{', '.join(takers[name])}: {option.said}",
            "default": argparse.SUPPRESS,
        }
        if option.kind is bool:
            said["action"] = "store_true"
        else:
            said |= {"type": option.read, "metavar": option.metavar}
            if option.many:
                said["action"] = "append"
        parser.add_argument(f"--{name}", **said)


def chosen(
    experiment: str, options: Iterable[Option], given: argparse.Namespace, foreign: Iterable[str] = ()
) -> dict[str, Any]:
    """Select the keywords for `run` from a parsed command line.

    Args:
        experiment: its name.
        options: its options.
        given: the parsed command line.
        foreign: names of options of other experiments.

    Returns:
        The keywords that were given.

    Raises:
        ValueError: one of the foreign options was given.

    >>> chosen("cliff", [Option("also", str, "", many=True)], argparse.Namespace(also=["gloo"]))
    {'also': ('gloo',)}
    """
    mine = {option.name: option for option in options}
    for name in foreign:
        if name not in mine and hasattr(given, name):
            takes = ", ".join(f"--{own}" for own in mine) or "no option of its own"
            raise ValueError(f"{experiment} has no --{name}: it takes {takes}")
    return {
        name: tuple(getattr(given, name)) if option.many else getattr(given, name)
        for name, option in mine.items()
        if hasattr(given, name)
    }


def on_cpu(ranks: Any) -> None:
    """Check that the ranks are on the CPU, for experiments whose programs make their tensors there.

    Raises:
        ValueError: they are not.

    >>> from types import SimpleNamespace
    >>> on_cpu(SimpleNamespace(device="cuda", world_size=2))
    Traceback (most recent call last):
        ...
    ValueError: this experiment's programs are written for the CPU, and these ranks are on cuda: ... device='cpu')
    """
    if ranks.device != "cpu":
        raise ValueError(
            f"this experiment's programs are written for the CPU, and these ranks are on {ranks.device}:"
            f" give it Ranks({ranks.world_size}, device='cpu')"
        )


def two_or_more(ranks: Any) -> None:
    """Check that there are at least two ranks, for experiments in which one rank differs from the others.

    Raises:
        ValueError: there is one.

    >>> from types import SimpleNamespace
    >>> two_or_more(SimpleNamespace(world_size=1))
    Traceback (most recent call last):
    ValueError: one rank differs from the others here: give at least 2 ranks, got 1
    """
    if ranks.world_size < 2:
        raise ValueError(
            f"one rank differs from the others here: give at least 2 ranks, got {ranks.world_size}"
        )
