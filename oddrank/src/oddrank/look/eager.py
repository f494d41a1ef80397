"""`oddrank look --eager`: a script compiled and with compiling off, and whether what differs is more than rounding."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from oddrank.files import below, write, write_json
from oddrank.look import command, eager_page, look, replays, values
from oddrank.look.agreement import CANNOT_TELL, WRONG, Answer, Region, Value, judge
from oddrank.look.endings import STOPPED
from oddrank.look.program import Program
from oddrank.look.runs import Stopped, Trial, refuse, trial
from oddrank.look.steps import Options
from oddrank.look.torchrun import FAILED, INTERRUPTED
from oddrank.look.ways import Way

__all__ = ["run", "table"]

FLOOR = 1e-4  # of the largest number of its kind in a step: smaller tensors are measured by that
COMPILED, EAGER, AGAIN, CAPTURED = "compiled", "eager", "eager again", "graphs in eager"
REGIONS, NUDGED, SETTINGS = "regions again", "last bit changed", "with settings"


def run(given: argparse.Namespace) -> int:
    """Run the command.

    Args:
        given: The parsed command line.

    Returns:
        0; 1 where the verdict is 'wrong' or 'cannot tell'; 3 where the script fails compiled or in eager.

    Raises:
        ValueError: For a request that cannot be met, and where the script had no step to record.
    """
    refuse(given, "eager")
    program = command.program_of(given)
    runs = _Runs(given, program, command.folder_for(given.out, program.name))
    try:
        for name, way in ((COMPILED, Way()), (EAGER, Way("no"))):
            ran = runs.run(name, way)
            if ran.ending.said:
                print(f"the script fails {name}: nothing was compared\n{ran.ending.said}", file=sys.stderr)
                return FAILED
            if name == COMPILED and (ran.looked is None or not ran.looked.steps):
                raise ValueError(look.nothing(ran.looked, Options(given.skip, given.steps, given.step)))
        answer, found, regions = _compared(runs)
    except Stopped:
        print(STOPPED, file=sys.stderr)
        return INTERRUPTED
    finally:
        for path in runs.folder.glob("*/values-*.pt"):
            path.unlink()
    body = {
        "program": program.command,
        "ranks": command.world_size(given),
        "answer": dataclasses.asdict(answer),
    }
    body |= {"runs": [{"name": name, "folder": ran.folder.name, "seconds": ran.seconds, "failed": ran.ending.said}
                      for name, ran in runs.made.items()]}  # fmt: skip
    body |= {"values": [vars(one) for one in found], "regions": [vars(one) for one in regions]}
    write_json(runs.folder / "eager.json", body)
    index = write(runs.folder / "index.html", eager_page.html(body, answer, found, regions).encode())
    print(f"\n{eager_page.text(answer)}\n\npage: {below(index)}")
    return command.GATE if answer.kind in (WRONG, CANNOT_TELL) else 0


class _Runs:
    """The runs of a script, by name."""

    def __init__(self, given: argparse.Namespace, program: Program, folder: Path) -> None:
        self.given, self.program, self.folder = given, program, folder
        self.made: dict[str, Trial] = {}

    def run(self, name: str, way: Way) -> Trial:
        """Run it once more."""
        options = Options(self.given.skip, self.given.steps, self.given.step, values=True, way=way)
        folder = self.folder / name.replace(" ", "-")
        ran = trial(self.given, self.program, folder, options, verify=self.given.verify)
        self.made[name] = ran
        print(f"{name:17} {ran.seconds:4.0f} s{'   failed' if ran.ending.said else ''}", flush=True)
        return ran

    def table(self, compiled: str = COMPILED) -> list[Value]:
        """Compare the runs with the one in eager."""
        loaded = {name: values.load(ran.folder) for name, ran in self.made.items() if not ran.ending.said}
        columns = {
            "compiled": loaded.get(compiled, {}),
            "again": loaded.get(AGAIN),
            "captured": loaded.get(CAPTURED),
        }
        return table(loaded[EAGER], columns | {"nudged": loaded.get(NUDGED)})


def _compared(runs: _Runs) -> tuple[Answer, list[Value], list[Region]]:
    """The verdict, with as many runs as it takes."""
    found, regions = runs.table(), []  # type: list[Value], list[Region]
    first = next((one for one in found if one.compiled > one.tolerance), None)
    if first is None:
        return judge(found, regions), found, regions
    print(f"{first.said} differs", flush=True)
    for name, way in ((AGAIN, Way("no")), (CAPTURED, Way("captured")), (REGIONS, Way(again=first.step))):
        ran = runs.run(name, way)
        if ran.ending.said:
            lacks = f"the run '{name}' failed: {ran.ending.said.splitlines()[0]}"
            return judge(found, regions, lacks=lacks), found, regions
        if name == AGAIN and any(
            (one.again or 0) > one.tolerance for one in runs.table() if one.step <= first.step
        ):
            return judge(runs.table(), regions), runs.table(), regions
    regions = replays.read(runs.made[REGIONS].folder)
    # as coarse as what the regions compute in: under autocast the last bit of a parameter is lost
    runs.run(NUDGED, Way("no", nudged=max((one.eps for one in regions), default=0.0)))
    found = runs.table()
    answer = judge(found, regions)
    settings = tuple(dict.fromkeys(one.setting for one in regions if one.setting in replays.SETTINGS))
    if answer.kind == CANNOT_TELL and settings and not runs.run(SETTINGS, Way(settings=settings)).ending.said:
        answer = judge(found, regions, runs.table(SETTINGS))
    return answer, found, regions


def table(eager: dict[int, values.Kept], columns: dict[str, dict[int, values.Kept] | None]) -> list[Value]:
    """Compare runs with the one in eager.

    Args:
        eager: What the ranks of that one computed.
        columns: The same of the others, by attribute of `Value`; None where there is no such run.

    Returns:
        A row of each loss, output and gradient: by step, then as the program made them, then by rank.
    """
    rows: list[tuple[int, int, int, Value]] = []
    for rank in sorted(eager.keys() & (columns["compiled"] or {}).keys()):
        others = {name: held[rank] for name, held in columns.items() if held is not None and rank in held}
        for order, kind in enumerate(("outputs", "losses", "gradients")):
            mine = eager[rank][kind]
            sizes: dict[int, float] = {}
            for name, tensor in mine.items():
                sizes[_step(name)] = max(sizes.get(_step(name), 0.0), values.largest(tensor))
            theirs = others["compiled"][kind]
            for name in dict.fromkeys([*mine, *theirs]):
                if kind == "outputs" and not (name in mine and name in theirs):
                    continue  # a branch on compiling may call something else
                value = _value(
                    rank, kind, name, mine, {key: held[kind] for key, held in others.items()}, sizes
                )
                rows.append((value.step, order, len(rows), value))
    return [row[-1] for row in sorted(rows, key=lambda row: row[:3])]


def _step(name: str) -> int:
    return int(name.split()[1].rstrip(","))


def _value(
    rank: int, kind: str, name: str, mine: Any, others: dict[str, Any], sizes: dict[int, float]
) -> Value:
    step, eager = _step(name), mine.get(name)
    found = others["compiled"].get(name)
    known = eager if eager is not None else found
    value = Value(rank, step, kind, name.partition(", ")[2], replays.TOLERANCES.get(known.dtype, 1.3e-6))
    for key, held in others.items():
        other = held.get(name)
        if eager is None or other is None or eager.shape != other.shape or eager.dtype != other.dtype:
            setattr(value, key, 0.0 if eager is None and other is None else float("inf"))
            continue
        far, size = values.compare(eager, other), max(values.largest(eager), FLOOR * sizes[step])
        setattr(value, key, far.absolute / size if size else 0.0 if not far.absolute else float("inf"))
        value.equal &= key != "compiled" or far.equal
    value.only = "compiled" if eager is None else "eager" if found is None else ""
    return value
