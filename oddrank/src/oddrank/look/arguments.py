"""The options of `oddrank look` and `oddrank report`, without an import of torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from oddrank import bounds
from oddrank.files import folder
from oddrank.look.changes import CHANGES

__all__ = ["add"]

STATUS = """\
exit status:
  0  done, and the gate passed
  1  with --against: breaks, graphs, recompiles or collectives rose, or ranks diverged;
     with --torch: a version changes what --allow does not name;
     with --perturb: a difference on one rank changed more than --allow names;
     with --eager: what differs from eager is wrong, or it cannot tell
  2  a request that cannot be met, or no step to record
  3  the script failed; with --torch: on every version; with --perturb: without a difference;
     with --eager: compiled or in eager
"""
FILES = (
    ("out", "DIR", "a new folder for the page and the data, on each machine"),
    ("save", "FILE", "save the counts as a baseline"),
    ("against", "FILE", "compare the counts with a baseline: exit status 1 if one rose"),
    ("trace", "FILE", "write one trace of all ranks, for Perfetto and chrome://tracing"),
)


def _number(kind: type, least: float, most: float) -> Callable[[str], Any]:
    """The type of an argument that is a number from `least` to `most`."""

    def read(text: str) -> Any:
        try:
            return bounds.read(text, kind, least, most)
        except ValueError:
            said = f"must be {bounds.rule(kind, least, most)}, got {bounds.short(text)}"
            raise argparse.ArgumentTypeError(said) from None

    return read


NUMBERS: tuple[tuple[str, str, Any, Callable[[str], Any], str], ...] = (
    ("skip", "K", 2, _number(int, 0, 1_000_000), "steps before the first recorded one"),
    ("steps", "K", 3, _number(int, 1, 1_000), "steps to record"),
    (
        "timeout",
        "S",
        None,
        _number(float, 0.1, 1e9),
        "seconds that a run may take (default: no limit; with --torch 600, with --perturb 300 or ten times a run)",
    ),
    (
        "stall",
        "S",
        None,
        _number(float, 0.1, 1e9),
        "seconds that all ranks may wait for each other (default: 60; with --perturb 30)",
    ),
    (
        "perturb-rank",
        "R",
        None,
        _number(int, 0, 65_535),
        "with --perturb: the rank that differs (default: the last)",
    ),
    (
        "perturb-step",
        "K",
        None,
        _number(int, 1, 1_000_000),
        "with --perturb: the batch that is shorter (default: that of the first recorded step)",
    ),
    (
        "perturb-delay",
        "S",
        20.0,
        _number(float, 0.1, 1e6),
        "with --perturb: seconds by which the rank's first compile is slower",
    ),
)
OPTIONS_OF = {
    "torch": ("with_", "requirements", "repeat", "tolerance"),
    "perturb": ("only", "perturb_env", "perturb_rank", "perturb_step"),
}


def add(commands: Any) -> None:
    """Add the commands to those of `oddrank`, with their options."""
    what = "Run an unchanged script as torchrun would, and write a page of what it compiled and ran."
    shown = "run a script of yours on ranks, and see its breaks, regions, recompiles and collectives"
    raw = argparse.RawDescriptionHelpFormatter
    look = commands.add_parser("look", help=shown, description=what, epilog=STATUS, formatter_class=raw)
    look.set_defaults(act=_look)
    _options(look)
    report = commands.add_parser("report", help="make one page of the reports that are saved in a folder")
    report.set_defaults(act=_report)
    what = "the folder; the page goes there too"
    report.add_argument("folder", type=folder, metavar="DIR", help=what)


def _options(parser: argparse.ArgumentParser) -> None:
    what = "number of ranks (default: 2; under torchrun, as many as it started)"
    parser.add_argument("-n", type=_number(int, 1, 65_536), metavar="N", help=what)
    what, names = (
        "backend of its process groups, whatever the script asks for",
        ("auto", "nccl", "gloo"),
    )
    parser.add_argument("--backend", default="auto", choices=names, help=what)
    for name, metavar, what in FILES:
        parser.add_argument(f"--{name}", type=Path, metavar=metavar, help=what)
    parser.add_argument("--step", default="", metavar="NAME", help="the function whose calls are the steps")
    for name, metavar, default, read, what in NUMBERS:
        said = what if default is None else f"{what} (default: {default})"
        parser.add_argument(f"--{name}", type=read, default=default, metavar=metavar, help=said)
    what = "compare every collective between ranks before it runs (slower)"
    parser.add_argument("--verify", action="store_true", help=what)
    what = "print the program's source, too, and what each rank did at each line; the page has it in any case"
    parser.add_argument("--source", action="store_true", help=what)
    what = "keep the losses of each step and the parameters after the last recorded one, in values-N.pt"
    parser.add_argument("--values", action="store_true", help=what)
    what = "run it compiled and in eager: is what differs rounding, another algorithm, or wrong?"
    parser.add_argument("--eager", action="store_true", help=what)
    what = "run it as it is, and then with one difference on one rank at a time"
    parser.add_argument("--perturb", action="store_true", help=what)
    what = "with --perturb: only this difference (may be repeated)"
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=what)
    what = "with --perturb: one more difference, an environment variable of one rank (NAME alone: not set)"
    parser.add_argument("--perturb-env", action="append", default=[], metavar="NAME=VALUE", help=what)
    what = (
        f"what may change (may be repeated): with --torch one of {', '.join(CHANGES)}; with --perturb one of hang,"
        " error, collectives, numbers, graph, or DIFFERENCE:OUTCOME"
    )
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help=what)
    _versions(parser)
    what = "run nothing: write the page from the records that the ranks of a run left in these folders"
    parser.add_argument("--merge", nargs="+", type=folder, metavar="DIR", help=what)
    rest = argparse.REMAINDER
    parser.add_argument("-m", dest="module", nargs=rest, metavar="...", help="a module and its arguments")
    parser.add_argument(
        "script", nargs=rest, metavar="...", help="a script and its arguments, after all options"
    )


def _versions(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run on several versions of torch."""
    group = parser.add_argument_group("several versions of torch")
    what = "run it on this torch (give two or more): a version, which uv gets, an environment's folder, or a python"
    group.add_argument("--torch", action="append", metavar="V", help=what)
    what = "where V is a version: a package that the script needs (default: those installed here)"
    group.add_argument("--with", dest="with_", action="append", metavar="PACKAGE", help=what)
    what = "a file that lists such packages"
    group.add_argument("--requirements", type=Path, action="append", metavar="FILE", help=what)
    what = "runs on each version; versions take turns (default: 2)"
    group.add_argument("--repeat", type=_number(int, 2, 100), metavar="K", help=what)
    what = "relative and absolute, for losses, outputs and parameters (default: that of torch.testing.assert_close)"
    group.add_argument("--tolerance", type=_number(float, 0, 1e9), metavar="T", help=what)


def _needs(*packages: str) -> None:
    """Refuse to begin where a package is not installed."""
    if lacks := [name for name in packages if find_spec(name) is None]:
        how = "install it as your job does" if "torch" in lacks else "pip install 'oddrank[look]' brings it"
        are = "are" if len(lacks) > 1 else "is"
        raise ValueError(f"{' and '.join(lacks)} {are} not installed here: {how}")


def _look(given: argparse.Namespace) -> int:
    _needs("torch", "pandas")
    modes = {"torch": "versions", "perturb": "ranks", "eager": "compiled and eager code"}
    several = [f"--{mode} compares {what}" for mode, what in modes.items() if getattr(given, mode)]
    if len(several) > 1:
        raise ValueError(f"{', '.join(several)}: give one of them")
    if given.allow and not (given.torch or given.perturb):
        raise ValueError("--allow is for --torch and --perturb")
    for mode, names in OPTIONS_OF.items():
        for name in names:
            if not getattr(given, mode) and getattr(given, name) not in (None, []):
                raise ValueError(f"--{name.rstrip('_').replace('_', '-')} is for --{mode}")
    if given.torch:
        from oddrank.look import versions

        return versions.run(given)
    if given.perturb:
        from oddrank.look import perturbations

        return perturbations.run(given)
    if given.eager:
        from oddrank.look import eager

        return eager.run(given)
    from oddrank.look import command

    return command.run(given)


def _report(given: argparse.Namespace) -> int:
    _needs("pandas")
    from oddrank.look import report_page

    print(f"page: {report_page.write(given.folder)}")
    return 0
