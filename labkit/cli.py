"""`labkit doctor | list | lessons | run | record | review | ledger | score`: what can be had without a notebook."""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit import __version__, experiments, files, hardware
from labkit.experiments import options, progress
from labkit.experiments.progress import told
from labkit.report import Report

BRIEF = ("summary", "counts", "breakdown", "cold", "verdicts", "tests")  # what --json prints of a report


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status (2 for a request that cannot be met, with one sentence why)."""
    try:
        given = _parser().parse_args(arguments)
        return given.act(given)
    except (ValueError, RuntimeError) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("labkit: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="labkit", description=__doc__)
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="what this machine has, and what ranks would run on")
    doctor.add_argument(
        "--features", action="store_true", help="what stands on private names of torch, and on which versions"
    )
    doctor.set_defaults(act=_doctor)
    listing = commands.add_parser("list", help="the experiments, their questions and sources")
    listing.add_argument("--names", action="store_true", help="only the names, for scripts")
    listing.set_defaults(act=_list)
    run = commands.add_parser("run", help="run an experiment and print what it found")
    run.add_argument(
        "experiment", help="a name from `labkit list`; a suite fails (exit code 1) where one test is red"
    )
    _run_options(run)
    run.add_argument("--save", metavar="DIR", help="also save the report there as NAME.json")
    run.add_argument("--json", action="store_true", help="print JSON instead of text")
    run.set_defaults(act=_together(_run))
    record = commands.add_parser("record", help="run experiments and keep their reports under data/recorded")
    record.add_argument("experiment", help="a name from `labkit list`, or 'all'")
    _run_options(record)
    record.add_argument("--again", action="store_true", help="also what is there already")
    record.add_argument("--into", metavar="DIR", help="folder of this machine's recordings")
    record.set_defaults(act=_together(_record))
    ledger = commands.add_parser("ledger", help="check the claims of the source documents on this torch")
    ledger.add_argument("--lesson", metavar="L", help="only the claims of a lesson, such as 04")
    ledger.add_argument(
        "--only", nargs="+", default=[], metavar="ID", help="only these claims; 't11.trap.*' is many"
    )
    ledger.add_argument(
        "--untested", action="store_true", help="list the claims without a check, and run nothing"
    )
    ledger.add_argument("--json", action="store_true", help="print JSON, with what the checks saw")
    ledger.add_argument(
        "--save",
        nargs="?",
        const="",
        metavar="DIR",
        help="keep the results, by default where lesson 15 finds them, and take what is kept of this torch and commit",
    )
    ledger.add_argument("--again", action="store_true", help="with --save: also measure what is kept already")
    ledger.set_defaults(act=_ledger)
    lessons = commands.add_parser("lessons", help="list the lessons, or copy them to a folder of yours")
    lessons.add_argument(
        "folder", nargs="?", metavar="DIR", help="where to; what is there already is left alone"
    )
    lessons.set_defaults(act=_lessons)
    review = commands.add_parser(
        "review", help="topic 12's ship checklist and review contract, held against a file of yours"
    )
    review.add_argument("file", help="a Python file; it is read, and not run")
    review.set_defaults(act=_review)
    score = commands.add_parser("score", help="your predictions in the lessons, beside what was measured")
    score.add_argument(
        "--json", action="store_true", help="print JSON, with when and on what it was measured"
    )
    score.set_defaults(act=_score)
    return parser


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="number of ranks (default: 2, or what it needs; under torchrun, as many as it started)",
    )
    parser.add_argument(
        "--backend",
        default="auto",
        help="auto, nccl, gloo or shm; on a CPU auto is what the experiment needs",
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    options.add(parser, {name: experiments.get(name).OPTIONS for name in experiments.NAMES})


def _doctor(given: argparse.Namespace) -> int:
    from labkit import doctor

    if given.features:
        print(doctor.features())
        return 0
    for key, value in doctor.examine():
        print(f"{key:<10} {value or '-'}")
    return 0


def _list(given: argparse.Namespace) -> int:
    for name in experiments.NAMES:
        if given.names:
            print(name)
            continue
        experiment = experiments.get(name)
        print(f"{name:<13} {experiment.QUESTION}\n{'':<13} {experiment.SOURCE}")
        for part, what in (getattr(experiment, "PARTS", None) or {}).items():
            print(f"{'':<13} {name + '/' + part:<24} {what}")
    return 0


def _measure(name: str, given: argparse.Namespace, quiet: bool, recording: bool = False) -> Report:
    """Run one experiment, or one of `all`, whose options it need not all take; `recording` adds its RECORD."""
    from labkit.ranks import Ranks

    experiment = experiments.get(name)
    every = () if given.experiment == "all" else experiments.NAMES
    others = {option.name for other in every for option in experiments.get(other).OPTIONS}
    arguments: dict[str, Any] = dict(getattr(experiment, "RECORD", {}) if recording else {})
    arguments |= options.chosen(name, experiment.OPTIONS, given, sorted(others))
    backend, nodes = given.backend, given.nodes
    device = getattr(experiment, "DEVICE", "auto") if given.device == "auto" else given.device
    needs = getattr(experiment, "RANKS", 2)
    count = given.ranks if given.ranks is not None else nodes.launch.world_size if nodes else needs
    local = nodes.launch.local_world_size if nodes else count
    if backend == "auto" and hardware.choose(local, device).device == "cpu":
        backend = experiment.LINK if count >= 2 and not (nodes and nodes.count > 1) else "gloo"
    start = nodes or "auto"
    with Ranks(count, device, backend, timeout=None, quiet=quiet, start=start) as ranks:
        report = experiment.run(ranks, talk=not quiet, **arguments)
    if nodes:
        report.provenance["launched"] = {"by": "torchrun", "machines": nodes.machines()}
    return report


def _together(act: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """`act`, which under torchrun rank 0 does, with the ranks that torchrun started; every other process serves it."""

    def begin(given: argparse.Namespace) -> int:
        from labkit.ranks.nodes import Nodes, launched, serve

        given.nodes = None
        launch = launched()
        if launch is None:
            return act(given)
        for name in experiments.NAMES if given.experiment == "all" else [given.experiment]:
            experiments.get(name)
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


def _run(given: argparse.Namespace) -> int:
    if given.save:
        _writable(Path(given.save))
    with told(given.save, given.experiment) as save:
        report = _measure(given.experiment, given, quiet=given.json)
        saved = save(report)
    if given.json:
        print(report.to_json([name for name in BRIEF if name in report.tables]))
    else:
        print(f"\n{report}")
    if saved:
        print(f"saved: {saved}", file=sys.stderr)
    passed = getattr(experiments.get(given.experiment), "passed", None)
    return 0 if passed is None or passed(report) else 1


def _record(given: argparse.Namespace) -> int:
    names = experiments.NAMES if given.experiment == "all" else (given.experiment,)
    for name in names:
        experiments.get(name)
    folder = Path(given.into) if given.into else recordings() / _machine()
    _writable(folder)
    failed = []
    for i, name in enumerate(names, 1):
        where = f"[{i}/{len(names)}] {name}"
        if not given.again and _recorded(folder / f"{name}.json"):
            print(
                f"{where}: recorded already with this torch and this commit, kept (--again measures it anew)"
            )
            continue
        print(f"{where} ...", flush=True)
        try:
            with told(folder, name) as save:
                report = _measure(name, given, quiet=False, recording=True)
                print(f"saved: {save(report)}", flush=True)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, ValueError) and len(names) == 1:
                raise  # of several, the others are still worth having
            failed.append(name)
            print(f"labkit: {name}: {error}", file=sys.stderr, flush=True)
        finally:
            progress.running(folder, name).unlink(missing_ok=True)
    if failed:
        print(
            f"labkit: not recorded: {', '.join(failed)}; the same command again tries only these",
            file=sys.stderr,
        )
    return 1 if failed else 0


def _recorded(path: Path) -> bool:
    """Whether a report that this torch and this commit would make again is there; one with changes never counts."""
    if not path.exists():
        return False
    there, now = Report.load(path).provenance, hardware.describe()
    return (
        all(there.get(key) == now[key] for key in ("torch", "commit", "hardware"))
        and "+" not in now["commit"]
    )


def _ledger(given: argparse.Namespace) -> int:
    from labkit.study import ledger, results
    from labkit.study.checks import CHECKS
    from labkit.study.claims import load

    claims = load(checks=CHECKS)
    rows = claims.choose(given.lesson, given.only)
    if given.untested:
        rows = tuple(row for row in rows if row.untested)
        if given.json:
            print(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
            return 0
        for row in rows:
            needs = f" (needs {', '.join(row.needs)})" if row.needs else ""
            print(f"{row.lesson:<24} {row.id}{needs}\n{'':<24} {row.claim}")
        print(f"\nrows without a check: {len(rows)}")
        return 0
    talk = None if given.json else lambda name: print(f"measuring {name} ...", file=sys.stderr, flush=True)
    if given.again and given.save is None:
        raise ValueError("--again goes with --save: without it nothing is kept, and everything is measured")
    if given.save is None:
        found = ledger.run(claims, rows, talk=talk)
    else:
        _writable(results.file(given.save or None).parent)
        found, there = results.resume(claims, rows, given.save or None, again=given.again, talk=talk)
        print(f"saved: {results.file(given.save or None)} (kept from before: {there} rows)", file=sys.stderr)
    if given.json:
        print(json.dumps(found.to_dict(), indent=1, ensure_ascii=False))
    else:
        print(found.text(width=shutil.get_terminal_size((150, 40)).columns))
    return 0


def _lessons(given: argparse.Namespace) -> int:
    from labkit.study import notebooks

    ours = notebooks.lessons()
    if not ours:
        raise ValueError(
            "this installation of labkit carries no lessons: install its wheel, or use the repository"
        )
    if given.folder is None:
        print("\n".join(path.stem for path in ours))
        return 0
    folder = Path(given.folder)
    _writable(folder)
    for path in ours:
        try:
            with open(folder / path.name, "xb") as copy:  # never over a copy that somebody has worked in
                copy.write(path.read_bytes())
            print(f"copied: {folder / path.name}")
        except FileExistsError:
            print(f"left alone, it is there already: {folder / path.name}")
    print(f"open them with: jupyter lab {folder / ours[0].name}")
    return 0


def _review(given: argparse.Namespace) -> int:
    from labkit.contract import review

    print(review(given.file))
    return 0


def _score(given: argparse.Namespace) -> int:
    from labkit.study import answers, scoreboard

    board = scoreboard()
    if given.json:
        print(board.frame().to_json(orient="records", indent=1, force_ascii=False))
    else:
        print(f"{board}\nyour answers: {answers.file()}")
    return 0


def recordings() -> Path:
    """`data/recorded` of the checkout. Raises ValueError when labkit was installed without the repository."""
    folder = files.ours("data/recorded")
    if folder.parent.parent.name == "shipped":
        raise ValueError("no data folder beside labkit: give the folder to record into with --into DIR")
    return folder


def _machine() -> str:
    return f"{hardware.slug()}-{datetime.date.today().isoformat()}"


def _writable(folder: Path) -> None:
    """Raise ValueError, before minutes of measuring, when a report could not be saved in `folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".labkit-write-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"cannot write in {folder}: {error.strerror or error}") from error


if __name__ == "__main__":
    sys.exit(main())
