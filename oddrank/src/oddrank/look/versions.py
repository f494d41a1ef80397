"""`oddrank look --torch A --torch B`: a script on several versions of torch, and what changes between them."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from oddrank.files import below, write, write_json
from oddrank.look import changes, command, gate, interpreters, processes, values, versions_page
from oddrank.look.causes import causes
from oddrank.look.command import world_size
from oddrank.look.look import FIRST, Look
from oddrank.look.rendezvous import launched
from oddrank.look.torchrun import FAILED

__all__ = ["DATA", "measured", "run"]

DATA = "versions.json"
REPEAT = 2
_DIGITS = re.compile(r"\d+")


def run(given: argparse.Namespace) -> int:
    """Run the command.

    Args:
        given: The parsed command line.

    Returns:
        0; 1 where a version changes more than is allowed, or counts are above the baseline; 3 where the script failed
        on every version.

    Raises:
        ValueError: For a request that cannot be met.
    """
    _check(given)
    program = command.program_of(given)
    baseline = gate.load(given.against, world_size(given)) if given.against else None
    if not all(Path(one).exists() for one in given.torch):
        print("uv makes the environments: a version that is new here takes minutes", flush=True)
    repeat = given.repeat or REPEAT
    found = interpreters.find(given.torch, given.with_ or [], given.requirements or [])
    folder, limit = command.folder_for(given.out, program.name), given.timeout or processes.LIMIT_S
    print(f"{program.name} on torch {', '.join(one.label for one in found)}", flush=True)
    print(processes.bound(len(found) * repeat, limit), flush=True)
    body: dict[str, Any] = {"program": program.name, "command": program.command, "tolerance": given.tolerance}
    body |= {"versions": [{"label": one.label, "asked": one.asked, "runs": []} for one in found]}
    for turn in range(1, repeat + 1):
        for number, (one, version) in enumerate(zip(found, body["versions"], strict=True), 1):
            ran = processes.run(one.python, _words(given), folder / f"{number}-run-{turn}", one.env, limit)
            version["runs"].append(measured(ran, one.version))
            print(f"torch {one.label}, run {turn} of {repeat}: {_ended(ran)}", flush=True)
            _save(body, folder)
    _compare(body["versions"], folder, given.tolerance)
    if not given.values:
        for path in folder.glob("*/values-*.pt"):
            path.unlink()
    _save(body, folder)
    return _finish(body, folder, given, baseline)


def _check(given: argparse.Namespace) -> None:
    if len(given.torch) < 2:
        raise ValueError("--torch is given for each version to compare, at least twice")
    if wrong := [name for name in given.allow if name not in changes.CHANGES]:
        raise ValueError(f"--allow {wrong[0]}: give one of {', '.join(changes.CHANGES)}")
    if given.merge or given.trace:
        raise ValueError(f"--{'merge' if given.merge else 'trace'} is for one run, without --torch")
    if launched() is not None:
        raise ValueError("--torch starts ranks itself: run it without torchrun")


def _words(given: argparse.Namespace) -> list[str]:
    """The options and the script of each run."""
    words = ["--values", "--backend", given.backend, "--skip", str(given.skip), "--steps", str(given.steps)]
    for name in ("n", "stall", "step"):
        if value := getattr(given, name):
            words += [f"-{name}" if name == "n" else f"--{name}", str(value)]
    words += ["--verify"] if given.verify else []
    return words + (["-m", *given.module] if given.module is not None else [*given.script])


def _ended(ran: processes.Ran) -> str:
    return f"{ran.seconds:.0f} s" + (f", failed: {ran.headline}" if ran.error else "")


def _save(body: dict[str, Any], folder: Path) -> None:
    write_json(folder / DATA, body)


def measured(ran: processes.Ran, torch: str) -> dict[str, Any]:
    """Return what the table and the verdicts take from a run, as plain data.

    Args:
        ran: The run.
        torch: The version that it should have imported.
    """
    found: dict[str, Any] = {
        "folder": ran.folder.name,
        "error": ran.headline,
        "seconds": round(ran.seconds, 1),
    }
    looked = ran.looked
    if looked is None and not ran.error:
        found["error"] = "no step was recorded"
    elif looked is not None and looked.missing:
        found["error"] = found["error"] or looked.notes[-1]
    elif looked is not None and (was := looked.provenance.get("torch")) != torch:
        found["error"] = found["error"] or f"it imported torch {was}, not {torch}"
    if found["error"] or looked is None:
        return found
    try:
        found["counts"] = gate.counts(looked)
    except ValueError as error:
        return found | {"error": str(error)}
    first = looked.provenance.get(FIRST) or []
    found["first_s"] = max(first) / 1e3 if first else None
    found["bytes"] = _bytes(looked)
    found["causes"] = [
        {"key": _key(one.said, one.place), "place": one.place, "said": one.said} for one in causes(looked)
    ]
    return found


def _bytes(looked: Look) -> dict[str, float | None]:
    """The bytes of the inputs of each rank's collectives, per step; None where they are not known."""
    calls = looked.held["calls"]
    found: dict[str, float | None] = {}
    for rank in looked.ranks:
        mine = calls[calls["rank"] == rank]["bytes"]
        # over shm nothing records them
        silent = mine.empty and looked.counts.set_index("rank").loc[rank, "collectives"] > 0
        found[str(rank)] = None if silent or (mine < 0).any() else float(mine.sum()) / looked.steps
    return found


def _key(said: str, place: str) -> str:
    """What makes two causes the same one: their kind and line; without a line, what is said but for numbers."""
    kinds = {"graph break": "graph break:", "compiled again": " compiled ", "given up": " was given up: "}
    kind = next((kind for kind, word in kinds.items() if word in said), "")
    return f"{kind} at {place}" if kind and place else _DIGITS.sub("", f"{said} {place}")


def _compare(versions: list[dict[str, Any]], folder: Path, tolerance: float | None) -> None:
    """Compare what ranks computed: in each run of a version with its first one, and with the reference."""
    first = changes.reference(versions)
    for one in versions:
        of = [folder / run["folder"] for run in one["runs"]]
        one["own"] = (
            _worst([values.apart(of[0], other, tolerance) for other in of[1:]]) if _ran(one) else _worst([])
        )
        pair = (
            [values.apart(folder / first["runs"][0]["folder"], of[0], tolerance)]
            if first and _ran(one)
            else []
        )
        one["first"] = _worst(pair)


def _ran(version: dict[str, Any]) -> bool:
    return not any(run["error"] for run in version["runs"])


def _worst(found: Sequence[values.Apart]) -> dict[str, Any]:
    kinds: dict[str, values.Largest] = {}
    for kind, far in ((kind, far) for one in found for kind, far in one.kinds.items()):
        kinds[kind] = max(
            kinds.get(kind, far), far, key=lambda far: (not far.close, not far.equal, far.relative)
        )
    left = dict.fromkeys(said for one in found for said in one.left)
    return {"kinds": {kind: dataclasses.asdict(far) for kind, far in kinds.items()}, "left": list(left)}


def _finish(
    body: dict[str, Any], folder: Path, given: argparse.Namespace, baseline: dict[str, Any] | None
) -> int:
    versions = body["versions"]
    told = changes.tell(versions)
    allowed = set(given.allow)
    refused = [change for one in told for change in one.changes if change.name not in allowed]
    print(f"\n{pd.DataFrame(list(changes.shown(versions))).to_string(index=False)}\n")
    for one in told:
        print(one.sentence)
    index = write(folder / "index.html", versions_page.html(body, sorted(allowed)).encode())
    print(f"\npage: {below(index)}", flush=True)
    reference = changes.reference(versions)
    if reference is None:
        return FAILED
    status = 0
    if given.save:
        gate.save(reference["runs"][0]["counts"], given.save)
        print(f"baseline saved, of torch {reference['label']}: {given.save}")
    for one in versions if baseline else []:
        if _ran(one):
            passes, said = gate.verdict(baseline or {}, one["runs"][0]["counts"], given.against)
            print(f"\ntorch {one['label']}: {said}")
            status = status or (0 if passes else command.GATE)
    if refused:
        names = ", ".join(dict.fromkeys(change.name for change in refused))
        print(f"\nnot allowed to change: {names} (--allow NAME lets it)")
    return command.GATE if refused else status
