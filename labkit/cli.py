"""`labkit doctor | list | run | record | review | ledger | score`: experiments and claims without a notebook."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit import __version__, experiments, hardware
from labkit.experiments import options
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
    run.set_defaults(act=_run)
    record = commands.add_parser("record", help="run experiments and keep their reports under data/recorded")
    record.add_argument("experiment", help="a name from `labkit list`, or 'all'")
    _run_options(record)
    record.add_argument("--into", metavar="DIR", help="folder of this machine's recordings")
    record.set_defaults(act=_record)
    ledger = commands.add_parser("ledger", help="check the claims of the source documents on this torch")
    ledger.add_argument("--lesson", metavar="L", help="only the claims of a lesson, such as 04")
    ledger.add_argument(
        "--only", nargs="+", default=[], metavar="ID", help="only these claims; 't11.trap.*' is many"
    )
    ledger.add_argument(
        "--untested", action="store_true", help="list the claims without a check, and run nothing"
    )
    ledger.add_argument("--json", action="store_true", help="print JSON, with what the checks saw")
    ledger.set_defaults(act=_ledger)
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
        "--ranks", type=int, metavar="N", help="number of ranks (default: 2, or what it needs)"
    )
    parser.add_argument(
        "--backend",
        default="auto",
        help="auto, nccl, gloo or shm; on a CPU auto is what the experiment needs",
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    options.add(parser, {name: experiments.get(name).OPTIONS for name in experiments.NAMES})


def _doctor(given: argparse.Namespace) -> int:
    facts = hardware.describe()
    rows = [
        (key, ", ".join(value) if isinstance(value, list) else str(value)) for key, value in facts.items()
    ]
    for count in (1, 2, 4):
        choice = hardware.choose(count)
        rows.append((f"Ranks({count})", f"{choice.backend} on {choice.device}: {choice.why}"))
    for key, value in rows:
        print(f"{key:<10} {value or '-'}")
    from labkit.torch_compat import check_version

    check_version(facts["torch"])
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


def _measure(name: str, given: argparse.Namespace, quiet: bool, together: bool = False) -> Report:
    """Run one experiment; `together` with others, which may take options that this one does not."""
    from labkit.ranks import Ranks

    experiment = experiments.get(name)
    others = (
        () if together else {o.name for other in experiments.NAMES for o in experiments.get(other).OPTIONS}
    )
    arguments: dict[str, Any] = options.chosen(name, experiment.OPTIONS, given, sorted(others))
    backend = given.backend
    size = getattr(experiment, "RANKS", 2) if given.ranks is None else given.ranks
    if backend == "auto" and hardware.choose(size, given.device).device == "cpu":
        backend = experiment.LINK if size >= 2 else "gloo"
    with Ranks(size, given.device, backend, timeout=None, quiet=quiet) as ranks:
        return experiment.run(ranks, talk=not quiet, **arguments)


def _run(given: argparse.Namespace) -> int:
    if given.save:
        _writable(Path(given.save))
    report = _measure(given.experiment, given, quiet=given.json)
    if given.json:
        print(report.to_json([name for name in BRIEF if name in report.tables]))
    else:
        print(f"\n{report}")
    if given.save:
        print(f"saved: {report.save(given.save)}", file=sys.stderr)
    passed = getattr(experiments.get(given.experiment), "passed", None)
    return 0 if passed is None or passed(report) else 1


def _record(given: argparse.Namespace) -> int:
    names = experiments.NAMES if given.experiment == "all" else (given.experiment,)
    for name in names:
        experiments.get(name)
    folder = Path(given.into) if given.into else recordings() / _machine()
    _writable(folder)
    for name in names:
        print(f"{name} ...", flush=True)
        print(f"saved: {_measure(name, given, quiet=False, together=given.experiment == 'all').save(folder)}")
    return 0


def _ledger(given: argparse.Namespace) -> int:
    from labkit.study import ledger
    from labkit.study.checks import CHECKS
    from labkit.study.claims import load

    claims = load(checks=CHECKS)
    rows = claims.choose(given.lesson, given.only)
    if given.untested:
        rows = tuple(row for row in rows if row.check is None)
        if given.json:
            print(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
            return 0
        for row in rows:
            needs = f" (needs {', '.join(row.needs)})" if row.needs else ""
            print(f"{row.lesson:<24} {row.id}{needs}\n{'':<24} {row.claim}")
        print(f"\nrows without a check: {len(rows)}")
        return 0
    talk = None if given.json else lambda name: print(f"measuring {name} ...", file=sys.stderr, flush=True)
    found = ledger.run(claims, rows, talk=talk)
    if given.json:
        print(json.dumps(found.to_dict(), indent=1, ensure_ascii=False))
    else:
        print(found.text(width=shutil.get_terminal_size((150, 40)).columns))
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
    folder = Path(__file__).resolve().parents[1] / "data" / "recorded"
    if not folder.parent.is_dir():
        raise ValueError("no data folder beside labkit: give the folder to record into with --into DIR")
    return folder


def _machine() -> str:
    name = re.sub(r"[^a-z0-9]+", "-", hardware.describe()["hardware"].lower()).strip("-")
    return f"{name}-{datetime.date.today().isoformat()}"


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
