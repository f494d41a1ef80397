"""`labkit run` and `labkit record`: run an experiment on ranks, and print and save its report."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import experiments, files, hardware, screen
from labkit.experiments import options, progress
from labkit.experiments.experiment import Experiment
from labkit.experiments.progress import told
from labkit.report import Report

__all__ = ["measure", "record", "recordings", "run", "together", "under_torchrun", "writable"]

BRIEF = ("summary", "counts", "breakdown", "cold", "verdicts", "tests")  # what --json prints of a report
PROBE = bytes(16 * 1024)  # so much has to fit before anything is measured


def together(act: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Make a command of experiments from one that runs and reports them, also under torchrun.

    Args:
        act: the command, which gets the parsed command line and returns the exit status.

    Returns:
        The command.
    """

    def begin(given: argparse.Namespace) -> int:
        every = given.experiment == "all" and act is record
        given.chosen = [
            experiments.get(name) for name in (experiments.declared() if every else [given.experiment])
        ]
        given.arguments = {one.name: _arguments(one, given) for one in given.chosen}
        return under_torchrun(act)(given)

    return begin


def under_torchrun(act: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Make a command work under torchrun: rank 0 runs it with the ranks that torchrun started, every other process
    serves.

    Args:
        act: the command, which gets the parsed command line, with the machines as `nodes`, and returns the exit status.

    Returns:
        The command.
    """

    def begin(given: argparse.Namespace) -> int:
        from labkit.ranks.nodes import Nodes, launched, serve

        given.nodes = None
        launch = launched()
        if launch is None:
            return act(given)
        if launch.rank:
            return serve(launch)
        given.nodes = nodes = Nodes(launch)
        status, why = 1, "it was ended"
        try:
            status = act(given)
            why = "" if not status else f"exit status {status}"
            return status
        except (ValueError, RuntimeError, KeyboardInterrupt) as error:
            status, why = 2, (str(error).splitlines() or [type(error).__name__])[0]
            raise
        finally:
            nodes.close(status, why)

    return begin


def _arguments(experiment: Experiment, given: argparse.Namespace) -> dict[str, Any]:
    """The keywords that were given for an experiment; with `all` an option need not belong to each."""
    every = () if given.experiment == "all" else experiments.declared().values()
    others = {option.name for other in every for option in other.options}
    return options.chosen(experiment.name, experiment.options, given, sorted(others))


def _where(experiment: Experiment, given: argparse.Namespace) -> tuple[int, str, str]:
    """Number of ranks, device and backend for an experiment."""
    backend, nodes = given.backend, given.nodes
    device = experiment.device if given.device == "auto" else given.device
    count = given.ranks or (nodes.launch.world_size if nodes else experiment.ranks)
    local = nodes.launch.local_world_size if nodes else count
    if backend == "auto" and hardware.choose(local, device).device == "cpu":
        backend = experiment.cpu_backend if count >= 2 and not (nodes and nodes.count > 1) else "gloo"
    return count, device, backend


def measure(experiment: Experiment, given: argparse.Namespace, quiet: bool, **more: Any) -> Report:
    """Run one experiment on new ranks with the given options.

    Args:
        experiment: the experiment.
        given: the parsed command line.
        quiet: print nothing meanwhile.
        more: keywords of `run`, which the given ones override.

    Returns:
        The report.
    """
    from labkit.ranks import Ranks

    nodes = given.nodes
    count, device, backend = _where(experiment, given)
    more_of_ranks: dict[str, Any] = {"quiet": quiet, "start": nodes or "auto", "logs": given.logs}
    with Ranks(count, device, backend, timeout=None, **more_of_ranks) as ranks:
        report = experiment.run(ranks, talk=not quiet, **{**more, **given.arguments[experiment.name]})
    if nodes:
        report.provenance["launched"] = {"by": "torchrun", "machines": nodes.machines()}
    return report


def run(given: argparse.Namespace) -> int:
    """Run an experiment, print the report, then save it: what cannot be saved is on the screen."""
    (experiment,) = given.chosen
    if given.save:
        writable(given.save, _file(experiment.name), progress.running(given.save, experiment.name).name)
        screen.keep_going()
    here = sys.stdout  # who follows the run gets the report itself
    with told(given.save, experiment.name) as save:
        report = measure(experiment, given, quiet=given.json)
        if given.json:
            print(screen.json_text(report.to_json([n for n in BRIEF if n in report.tables])), file=here)
        else:
            print(f"\n{report}", file=here)
        here.flush()
        saved = save(report)
    if saved:
        print(f"saved: {saved}", file=sys.stderr)
    return 0 if experiment.passed(report) else 1


def record(given: argparse.Namespace) -> int:
    """Run and save experiments.

    A failure costs none of the others; a mistyped option stops before the first. A report with a red test is saved.
    """
    folder = given.into or recordings() / f"{hardware.slug()}-{datetime.date.today().isoformat()}"
    for experiment in given.chosen:
        if given.nodes is None and (given.ranks, given.backend, given.device) != (None, "auto", "auto"):
            hardware.choose(*_where(experiment, given))
        writable(folder, _file(experiment.name), progress.running(folder, experiment.name).name)
    kept = {e.name for e in given.chosen if not given.again and _recorded(folder / _file(e.name))}
    screen.keep_going()
    failed: list[str] = []
    red: list[str] = []
    for i, experiment in enumerate(given.chosen, 1):
        name, report = experiment.name, None
        where = f"[{i}/{len(given.chosen)}] {name}"
        if name in kept:
            print(
                f"{where}: recorded already with this torch and this commit, kept (--again measures it anew)"
            )
            continue
        print(f"{where} ...", flush=True)
        try:
            with told(folder, name) as save:
                report = measure(experiment, given, quiet=False, **experiment.record)
                print(f"saved: {save(report)}", flush=True)
            if not experiment.passed(report):
                red.append(name)
        except files.Unsaved:
            if report is not None:
                print(f"\n{report}", flush=True)
            left = [other.name for other in given.chosen[i:] if other.name not in kept]
            if left:
                print(f"labkit: not started: {', '.join(left)}", file=sys.stderr)
            raise
        except (RuntimeError, ValueError) as error:
            if isinstance(error, ValueError) and (len(given.chosen) == 1 or given.arguments[name]):
                raise  # a mistake in what was typed
            failed.append(name)
            print(f"labkit: {name}: {error}", file=sys.stderr, flush=True)
        finally:
            progress.running(folder, name).unlink(missing_ok=True)
    if failed:
        print(
            f"labkit: not recorded: {', '.join(failed)}; the same command again tries only these",
            file=sys.stderr,
        )
    if red:
        print(f"labkit: saved, with a red test: {', '.join(red)}", file=sys.stderr)
    return 1 if failed or red else 0


def _file(name: str) -> str:
    return f"{name.replace('/', '-')}.json"


def _recorded(path: Path) -> bool:
    """Whether there is a report that this torch and this commit would make again; a tree with changes never counts."""
    if not path.exists():
        return False
    there, now = Report.load(path).provenance, hardware.describe()
    return (
        all(there.get(key) == now[key] for key in ("torch", "commit", "hardware"))
        and "+" not in now["commit"]
    )


def recordings() -> Path:
    """The folder `data/recorded` of the checkout.

    Raises:
        ValueError: labkit was installed without the repository.
    """
    folder = files.ours("data/recorded")
    if folder.parent.parent.name == "shipped":
        raise ValueError("no data folder beside labkit: give the folder to record into with --into DIR")
    return folder


def writable(folder: Path, *names: str) -> None:
    """Check, before minutes of measuring, that files can be saved.

    Args:
        folder: made where it is missing.
        names: of the files.

    Raises:
        ValueError: they cannot be saved; the message gives the reason.
    """
    for path in (folder / name for name in names):
        if path.is_dir():
            raise ValueError(f"cannot write {path}: it is a folder, and a file has to go there")
    probe = folder / f".labkit-write-probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(PROBE)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        there = folder.exists() and not folder.is_dir()
        why = "it is a file, and a folder is needed" if there else error.strerror or error
        raise ValueError(f"cannot write in {folder}: {why}") from error
