"""The doors of `labkit run | list | program | lessons` in the command line: without an import of torch."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import oddrank.files
from oddrank.files import Unsaved

from labkit import files, hardware
from labkit.lessons.parameters import chosen, parameters
from labkit.lessons.standalone import script

__all__ = ["add"]

STATUS = """\
exit status:
  0  every cell ran
  1  a cell failed; earlier reports are kept
  2  a request that cannot be met
  3  a report or a notebook could not be saved or printed
"""
HERE = "data/recorded, by machine and day"
SAVED = "keep the executed notebook and each report of its cells as NAME.json"


def add(commands: Any) -> None:
    """Add the commands to those of `labkit`, with their options."""
    what = "Execute lessons in fresh kernels, with other parameters, and print the reports that their cells show."
    raw = argparse.RawDescriptionHelpFormatter
    brief = "execute a lesson's cells, with other parameters, and print its reports"
    run = commands.add_parser("run", help=brief, description=what, epilog=STATUS, formatter_class=raw)
    run.set_defaults(act=_run)
    what = "numbers or names of lessons, and their parameters, as in: 04 BLOCKS=8"
    run.add_argument("asked", nargs="*", metavar="LESSON | NAME=VALUE", help=what)
    run.add_argument("--all", action="store_true", help="every lesson")
    what = f"{SAVED} (without DIR: {HERE})"
    run.add_argument("--save", nargs="?", type=oddrank.files.folder, const=Path(), metavar="DIR", help=what)
    run.add_argument("--json", action="store_true", help="print tables and verdicts as JSON")
    listing = commands.add_parser("list", help="the lessons, their questions and their parameters")
    listing.set_defaults(act=_list)
    program = commands.add_parser("program", help="print a lesson's program as a script for torchrun")
    program.set_defaults(act=_program)
    program.add_argument("lesson", metavar="LESSON", help="its number or name")
    copy = commands.add_parser("lessons", help="list the lessons, or copy them to a folder of yours")
    copy.set_defaults(act=_lessons)
    what = "the folder to copy to; files that are there already are left alone"
    copy.add_argument("folder", nargs="?", type=oddrank.files.folder, metavar="DIR", help=what)


def _run(given: argparse.Namespace) -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ValueError("a lesson starts ranks of its own: call `labkit run` without torchrun")
    named = [word for word in given.asked if "=" not in word]
    if given.all == bool(named):
        raise ValueError(f"give lessons or --all, {'not both' if named else 'as in: labkit run 04 BLOCKS=8'}")
    lessons = [_find(word) for word in named] or _every()
    values = _values(lessons, dict(word.split("=", 1) for word in given.asked if "=" in word))
    folder = _recordings() if given.save == Path() else given.save
    if folder is not None:
        if folder.resolve() == lessons[0].parent.resolve():
            raise ValueError(f"{folder} holds the lessons themselves: save elsewhere")
        oddrank.files.writable(folder, *(path.name for path in lessons))

    from labkit.lessons.execution import Done, execute  # papermill and pandas, seconds on a slow disk

    def say(text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)

    def shown(report: Any) -> None:
        if not given.json:
            print(f"\n{report}\n", flush=True)

    every: list[Done] = []
    for path in lessons:
        done = execute(path, values[path.stem], folder, say, shown)
        every.append(done)
        if done.failed:
            kept = f"; the notebook up to there: {folder / path.name}" if folder else ""
            print(f"\nlabkit: {done.failed}{kept}", file=sys.stderr, flush=True)
    if given.json:
        print(_json(every))
    if folder is not None:
        print(f"saved in {folder}: {', '.join(_kept(every))}", file=sys.stderr)
    failed = [files.number(done.lesson) for done in every if done.failed]
    if failed and len(every) > 1:
        print(f"labkit: a cell failed in {', '.join(failed)}; the others ran to the end", file=sys.stderr)
    return 1 if failed else 0


def _kept(every: list[Any]) -> list[str]:
    return [
        name
        for done in every
        for name in (f"{done.lesson}.ipynb", *dict.fromkeys(f"{r.name}.json" for r in done.reports))
    ]


def _json(every: list[Any]) -> str:
    """What came of the lessons, as one JSON list."""
    bodies = [
        {
            "lesson": done.lesson,
            "parameters": done.parameters,
            "failed": done.failed,
            "reports": [json.loads(report.to_json()) for report in done.reports],
        }
        for done in every
    ]
    return json.dumps(bodies, indent=1)


def _values(lessons: list[Path], typed: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The values of each lesson's parameters; with several lessons a parameter need not belong to each."""
    known = {path.stem: parameters(path) for path in lessons}
    several = len(lessons) > 1
    for name in typed if several else ():
        if not any(name in of for of in known.values()):
            raise ValueError(f"no lesson has a parameter {name!r}: `labkit list` shows them")
    found = {}
    for lesson, of in known.items():
        mine = {name: text for name, text in typed.items() if name in of or not several}
        found[lesson] = chosen(of, mine, f"lesson {files.number(lesson)}")
    return found


def _every() -> list[Path]:
    found = files.lessons()
    if not found:
        raise ValueError(
            "this installation of labkit carries no lessons: install its wheel, or use the repository"
        )
    return found


def _find(word: str) -> Path:
    """A lesson by its number or its name."""
    every = _every()
    for path in every:
        number = files.number(path)
        if word and word in (path.stem, number, number.removeprefix("0")):
            return path
    raise ValueError(f"unknown lesson {word!r}: there is {', '.join(map(files.number, every))}")


def _recordings() -> Path:
    root = files.ours("data/recorded")
    if root.parent.parent.name == "shipped":
        raise ValueError("no data folder beside labkit: give a folder, as in --save DIR")
    return root / f"{hardware.slug()}-{datetime.date.today().isoformat()}"


def _list(given: argparse.Namespace) -> int:
    for path in _every():
        first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        title, question = (
            re.search(form, first, re.MULTILINE)
            for form in (r"^# (.+)", r"^\*\*The question\.\*\* (.+(?:\n.+)*)")
        )
        print(" ".join(title[1].replace("·", " ").split()) if title else path.stem)
        print(f"    {' '.join(question[1].split()) if question else ''}")
        for one in parameters(path).values():
            print(f"    {f'{one.name} = {json.dumps(one.default)}':<32} {one.meaning}: {one.rule}")
    return 0


def _program(given: argparse.Namespace) -> int:
    print(script(_find(given.lesson).stem), end="")
    return 0


def _lessons(given: argparse.Namespace) -> int:
    _every()  # or it says that there are none
    ours = files.notebooks()
    if given.folder is None:
        print("\n".join(path.stem for path in ours))
        return 0
    folder = given.folder
    oddrank.files.writable(folder)
    for path in [*ours, *sorted((ours[0].parent / "pictures").iterdir())]:
        copy = folder / path.relative_to(ours[0].parent)
        if copy.exists() or copy.is_symlink():  # somebody may have worked in it
            print(f"left alone, it is there already: {copy}")
            continue
        try:
            oddrank.files.write(copy, path.read_bytes())
        except OSError as error:
            raise Unsaved(f"cannot copy {path.name} to {folder}: {error.strerror or error}") from error
        print(f"copied: {copy}")
    print(f"open them with: jupyter lab {folder / ours[0].name}")
    return 0
