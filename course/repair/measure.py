"""Lesson 18's service and training job: what each fix changes in speed, in counts and in the contract."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from oddrank.record import merge as merge_records

from course.repair import on_ranks, stages
from course.repair.checks import judge
from course.shared.options import chosen
from course.shared.outcomes import judge as judge_end
from course.shared.program import choose as choose_program
from labkit.pace import patience
from labkit.per_rank import PerRank
from labkit.ranks import RankError, Ranks
from labkit.report import Report
from labkit.timing import Times, check_rounds

__all__ = ["BASELINE", "DELIVERED", "described", "drills", "factorial", "merge", "run"]

TITLE, VIEW = "A service, repaired fault by fault", "course.repair.figures:progress"

BASELINE, DELIVERED, YOURS = "eager", "delivered", "yours"
NEEDED = ("Settings", "Shard", "serve", "replay", "FRAME", "CALIBRATE")  # what is taken of the program
STALL_S, PATIENCE_S, PAUSE_S = 1.0, 30.0, 1.0
TIMEOUT_S = 600.0


def run(
    ranks: Ranks,
    stage: Sequence[str] = (),
    *,
    rounds: int = 40,
    program: Any = None,
    name: str = YOURS,
) -> Report:
    """Fix the service fault by fault; after each fix count, compare with the contract, and time against eager.

    The yardstick is the repaired service without torch.compile. Counts come from Dynamo alone (`backend="eager"`),
    times from Inductor. Tables: `stages` (stage, breaks, regions, recompiles in traffic, functional collectives a
    frame, and the checks that fail), `checks` (stage, check, passed, said), those of a record by `variant` (the
    stage), and `samples` (evidence, variant, rank, round, seconds a frame).

    Args:
        ranks: the two shards, on the CPU. Three ranks more, over gloo, are started for the drills.
        stage: stages to measure, all by default: 'delivered', or the name of a fault, for the service after its fix
            and all those before it in the lesson's order. In the tables such a stage is the fault's name and 'fixed'.
        rounds: of the timing; 0 leaves it out.
        program: the service, as a module or a mapping such as a notebook's `globals()`, which is measured in the place
            of the stages; None is the lesson's own.
        name: of the stage of `program`.

    Raises:
        ValueError: another number of ranks than two, bad rounds, a stage that does not exist, or one with the name
            of the yardstick; before any rank is asked.
        RankError: the service fails on two shards.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = run(ranks, ["functional"], rounds=0)
    >>> report.frame[["stage", "breaks", "fails"]].to_dict("split")["data"]
    [['functional fixed', 0.0, '']]
    """
    if ranks.device != "cpu":
        raise ValueError(
            f"this experiment's programs are written for the CPU, and these ranks are on {ranks.device}:"
            f" give it Ranks({ranks.world_size}, device='cpu')"
        )
    if ranks.world_size != 2:
        raise ValueError(f"the service has two shards: give 2 ranks, got {ranks.world_size}")
    if rounds:
        check_rounds(rounds)
    if name == BASELINE:
        raise ValueError(
            f"{BASELINE!r} is the name of what stages are compared with: give the stage another name"
        )
    ours = choose_program("repair", program, NEEDED)
    services = {name: ours.code} if program is not None else _stages(stage)
    tables: dict[str, list[pd.DataFrame]] = {key: [] for key in ("stages", "checks", "counts", "breaks")}
    with Ranks(3, device="cpu", backend="gloo", quiet=True, live=False) as three:
        for made, service in services.items():
            facts = ranks.run(on_ranks.watched, service, timeout=patience(TIMEOUT_S))
            found = described(facts, drills(three, service))
            for key, table in found.items():
                tables[key].append(
                    table.assign(**{"stage" if key in ("stages", "checks") else "variant": made})
                )
    whole = {key: pd.concat(parts, ignore_index=True) for key, parts in tables.items()}
    verdicts = []
    if rounds:
        timed = {BASELINE: (stages.sources(stages.faults()), False)}
        timed |= {made: (service, True) for made, service in services.items()}
        times = Times.merge(ranks.run(on_ranks.timed, timed, rounds, timeout=patience(TIMEOUT_S)))
        whole["samples"] = times.frame.assign(evidence=ranks.label)
        verdicts = [times.compare(made, BASELINE) for made in services]
    return Report("repair", TITLE, ranks.label, whole, verdicts, notes=ours.notes, view=VIEW)


def factorial(ranks: Ranks, factors: Mapping[str, Sequence[str]], rounds: int) -> Times:
    """Time the service with each combination of some faults left in and all others fixed, in the same rounds.

    Args:
        ranks: the two shards.
        factors: names of faults that are left in together, by the name of the factor.
        rounds: of the timing.

    Returns:
        Seconds a frame. Variants are named after what is left in, as in 'breaks + decoder' or 'neither', and 'eager' is
        the repaired service without torch.compile.

    Raises:
        ValueError: bad rounds, or a fault that does not exist.
    """
    check_rounds(rounds)
    timed: dict[str, tuple[Any, bool]] = {}
    for bits in itertools.product((True, False), repeat=len(factors)):
        left = [name for name, bit in zip(factors, bits, strict=True) if bit]
        faults = [fault for name in left for fault in chosen(factors[name], stages.faults(), "fault")]
        fixed = [fault for fault in stages.faults() if fault not in faults]
        timed[" + ".join(left) or "neither"] = (stages.sources(fixed), True)
    timed[BASELINE] = (stages.sources(stages.faults()), False)
    return Times.merge(ranks.run(on_ranks.timed, timed, rounds, timeout=patience(TIMEOUT_S)))


def merge(reports: Sequence[Report]) -> Report:
    """Put the reports of several stages into one, in this order, with the last one's label and notes.

    Each was timed against eager in rounds of its own, and is compared with eager in these alone: rounds of different
    reports get different numbers in `samples`. Where a name of a stage comes again it gets a number, such as 'log 2'.

    Raises:
        ValueError: there are none.
    """
    if not reports:
        raise ValueError("there are no reports to put together")
    reports, last = _numbered(reports), reports[-1]
    parts: dict[str, list[pd.DataFrame]] = {key: [] for key in last.tables}
    rounds = 0
    for report in reports:
        for key, table in report.tables.items():
            if key == "samples":
                table = table.assign(round=table["round"] + rounds)
                rounds = int(table["round"].max()) + 1
            parts.setdefault(key, []).append(table)
    tables = {key: pd.concat(tables, ignore_index=True) for key, tables in parts.items()}
    verdicts = [verdict for report in reports for verdict in report.verdicts]
    return Report("repair", TITLE, last.label, tables, verdicts, notes=last.notes, view=VIEW)


def _numbered(reports: Sequence[Report]) -> list[Report]:
    """The reports with a name of its own for each stage: the second 'log' is 'log 2', unless that is taken."""
    taken, found = {BASELINE}, []
    for report in reports:
        names = {}
        for stage in report.frame["stage"]:
            candidates = (f"{stage} {n}" if n > 1 else stage for n in itertools.count(1))
            names[stage] = next(name for name in candidates if name not in taken)
            taken.add(names[stage])
        tables = {
            key: table.replace({"stage": names, "variant": names}) for key, table in report.tables.items()
        }
        verdicts = [replace(verdict, a=names.get(verdict.a, verdict.a)) for verdict in report.verdicts]
        found.append(replace(report, tables=tables, verdicts=verdicts))
    return found


def drills(three: Ranks, service: Any) -> dict[str, tuple[bool, str]]:
    """Try on three ranks whether a calibration ends, and whether a pause is survived.

    Both run without torch.compile. The first waits longer for an answer than the service would, so that what ends it is
    no timeout; the second has the service's own timeout.

    Args:
        three: three ranks, which are replaced where a drill fails.
        service: cells of the service, or a program.

    Returns:
        For the checks `ends` and `patient`, whether it passed, and what was said.
    """
    code = stages.build(service)
    prompt = on_ranks.PROMPTS[0]
    frame = (code.FRAME, prompt)
    asked: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "ends": ([frame, (code.CALIBRATE, ()), frame], {"timeout_s": PATIENCE_S}),
        "patient": ([frame], {"pause_s": PAUSE_S}),
    }
    found = {}
    for check, (work, settings) in asked.items():
        try:
            answers = three.run(
                on_ranks.day, service, work, stall=STALL_S, timeout=patience(4 * PATIENCE_S), **settings
            )[0]
            found[check] = (len(answers) == len(work), f"{len(answers)} of {len(work)} answers")
        except RankError as error:
            how, said = judge_end(error)
            found[check] = (False, f"{how}: {said.rpartition('] ')[2]}")  # without a file of gloo's
    return found


def _stages(wanted: Sequence[str]) -> dict[str, dict[str, str]]:
    faults = stages.faults()
    known = [DELIVERED, *faults]
    return {
        name if name == DELIVERED else f"{name} fixed": stages.sources(faults[: known.index(name)])
        for name in chosen(wanted, known, "stage")
    }


def described(facts: PerRank, drilled: dict[str, tuple[bool, str]]) -> dict[str, pd.DataFrame]:
    """Make the tables of one stage.

    Args:
        facts: what `on_ranks.watched` found, by shard.
        drilled: what `drills` found.

    Returns:
        A table for each name that `run` lists, without the stage's own name.
    """
    record = merge_records(facts.map(lambda found: found["record"]))
    counts = record.counts.frame().set_index("rank")
    facts = PerRank(
        {rank: found | {"breaks": float(counts.loc[rank, "breaks"])} for rank, found in facts.items()}
    )
    checks = pd.DataFrame(judge(facts, drilled))
    most = {name: float(counts[name].max()) for name in ("breaks", "regions", "collectives")}
    most["recompiles"] = max(found["recompiles"] for found in facts.values())
    most["functional"] = max(found["functional"] for found in facts.values())
    row = {**most, "fails": ", ".join(checks[~checks["passed"]]["check"])}
    return {
        "stages": pd.DataFrame([row]),
        "checks": checks,
        "counts": record.counts.frame(),
        "breaks": record.breaks.frame(),
    }
