"""What an experiment can be told, by the command line above all, and which ranks it takes: each declares its own."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ALSO", "BLOCKS", "ROUNDS", "Option", "add", "chosen", "on_cpu"]


@dataclass(frozen=True)
class Option:
    """A keyword of an experiment's `run` that the command line offers as `--name`.

    kind: the type of its value, bool for a switch. many: may be given again, and is handed over as a tuple. Without
    the option `run`'s own default holds.
    """

    name: str
    kind: type
    help: str
    metavar: str = "N"
    many: bool = False


# what several experiments take: one object, because one option has one meaning
BLOCKS = Option("blocks", int, "transformer blocks (default 40)")
ROUNDS = Option("rounds", int, "timing rounds; fewer than 8 tell nothing")
ALSO = Option("also", str, "time on this backend as well; may be given again", "BACKEND", many=True)


def add(parser: argparse.ArgumentParser, declared: Mapping[str, Iterable[Option]]) -> None:
    """Add the options of all experiments, each with the names of those that take it.

    Raises ValueError where two experiments mean different things by one option.

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
            "help": f"{', '.join(takers[name])}: {option.help}",
            "default": argparse.SUPPRESS,
        }
        if option.kind is bool:
            said["action"] = "store_true"
        else:
            said |= {"type": option.kind, "metavar": option.metavar}
            if option.many:
                said["action"] = "append"
        parser.add_argument(f"--{name}", **said)


def chosen(
    experiment: str, options: Iterable[Option], given: argparse.Namespace, foreign: Iterable[str] = ()
) -> dict[str, Any]:
    """The keywords for `run` out of a parsed command line.

    `foreign` names options of other experiments: raises ValueError where one of them was given.

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
    """Raise ValueError unless the ranks are on the CPU: for experiments whose programs make their tensors there.

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
