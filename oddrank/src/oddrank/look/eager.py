"""`oddrank look --eager`: a script compiled and with compiling off, and whether what differs is more than rounding."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from oddrank.files import below, write, write_json
from oddrank.look import command, eager_page, look, replays, values
from oddrank.look.agreement import CANNOT_TELL, FASTPATH, SHAPE, WRONG, Answer, Region, Value, judge, parted
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
    made = [
        {"name": name, "folder": ran.folder.name, "seconds": ran.seconds, "failed": ran.ending.said}
        for name, ran in runs.made.items()
    ]
    body = {"program": program.command, "ranks": command.world_size(given), "runs": made}
    body |= {"answer": vars(answer), "values": [*map(vars, found)], "regions": [*map(vars, regions)]}
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

    def table(self, eager: str = EAGER, compiled: str = COMPILED) -> list[Value]:
        """Compare the runs."""
        loaded = {name: values.load(ran.folder) for name, ran in self.made.items() if not ran.ending.said}
        return table(loaded, eager, compiled)


def _compared(runs: _Runs) -> tuple[Answer, list[Value], list[Region]]:
    """The verdict, with as many runs as it takes."""
    found, regions = runs.table(), []  # type: list[Value], list[Region]
    first = next((one for one in found if one.compiled > one.tolerance), None)
    if first is None:
        return judge(found, regions), found, regions
    print(f"{first.said} differs", flush=True)
    for name in (AGAIN, CAPTURED, REGIONS, NUDGED):
        ways = {CAPTURED: Way("captured"), REGIONS: Way(again=first.step)}
        # as coarse as what the regions compute in: under autocast the last bit of a parameter is lost
        ways[NUDGED] = Way("no", nudged=max((one.eps for one in regions), default=0.0))
        ran = runs.run(name, ways.get(name, Way("no")))
        failed = ran.ending.said and f"the run '{name}' failed: {ran.ending.said.splitlines()[0]}"
        found, regions = runs.table(), regions or replays.read(ran.folder)
        if failed or parted(found):
            break
    answer = judge(found, regions, lacks=failed)
    if answer.ask:
        fast = FASTPATH in answer.ask
        if not runs.run(SETTINGS, Way("no" if fast else "yes", settings=answer.ask)).ending.said:
            answer = judge(found, regions, runs.table(SETTINGS) if fast else runs.table(compiled=SETTINGS))
    return answer, found, regions


def table(
    runs: dict[str, dict[int, values.Kept]], eager: str = EAGER, compiled: str = COMPILED
) -> list[Value]:
    """Compare runs.

    Args:
        runs: What the ranks of each computed, by its name.
        eager: The one in eager that is compared.
        compiled: The compiled one that is.

    Returns:
        A row of each loss, output and gradient: by step, then as the program made them, then by rank.
    """
    pairs = {"compiled": (eager, compiled), "again": (EAGER, AGAIN), "anew": (COMPILED, REGIONS)}
    pairs |= {"captured": (EAGER, CAPTURED), "nudged": (EAGER, NUDGED)}
    rows: list[tuple[int, int, int, Value]] = []
    for rank in sorted(runs[eager].keys() & runs[compiled].keys()):
        for order, kind in enumerate(("outputs", "losses", "gradients")):
            held = {name: ranks[rank][kind] for name, ranks in runs.items() if rank in ranks}
            mine, theirs = held[eager], held[compiled]
            sizes: dict[int, float] = {}
            for name, tensor in mine.items():
                sizes[_step(name)] = max(sizes.get(_step(name), 0.0), values.largest(tensor))
            for name in dict.fromkeys([*mine, *theirs]):
                if kind == "outputs" and not (name in mine and name in theirs):
                    continue  # a branch on compiling may call something else
                known = mine[name] if name in mine else theirs[name]
                step, tolerance = _step(name), replays.TOLERANCES.get(known.dtype, 1.3e-6)
                value = Value(rank, step, kind, name.partition(", ")[2], tolerance)
                far = {
                    key: _apart(held[a].get(name), held[b].get(name), FLOOR * sizes.get(step, 0.0))
                    for key, (a, b) in pairs.items()
                    if a in held and b in held
                }
                value.compiled, value.captured, value.nudged = (
                    far["compiled"],
                    far.get("captured"),
                    far.get("nudged"),
                )
                value.again = max((far[key] for key in ("again", "anew") if key in far), default=None)
                value.only = "compiled" if name not in mine else "eager" if name not in theirs else ""
                if not value.only and mine[name].shape != theirs[name].shape:
                    value.only = SHAPE
                rows.append((step, order, len(rows), value))
    return [row[-1] for row in sorted(rows, key=lambda row: row[:3])]


def _step(name: str) -> int:
    return int(name.split()[1].rstrip(","))


def _apart(a: torch.Tensor | None, b: torch.Tensor | None, least: float) -> float:
    """The largest difference, divided by the largest number of the first, or `least`."""
    if a is None or b is None or a.shape != b.shape:
        return 0.0 if a is b else float("inf")
    far, size = values.compare(a, b.to(a.dtype)).absolute, max(values.largest(a), least)
    return far / size if size else float("inf") if far else 0.0
