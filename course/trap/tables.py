"""The eager trap's tables, out of what the ranks measured: times, verdicts over a noise floor, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from course.trap.calls import AGAIN, ASYNC, FUNCTIONAL, IN_PLACE
from labkit.report import PerRank
from labkit.timing import Measurement, Verdict, compare, noise_floor, slowest

__all__ = ["model_verdicts", "size", "tables"]

Runs = dict[str, PerRank[dict[str, Any]]]
RETURN, DONE, CONTROL = "return", "done", "control"
STAGES = {RETURN: 0, DONE: 1}


def tables(runs: Runs, rungs: Sequence[str], collectives: int) -> dict[str, pd.DataFrame]:
    """Every table of the report, the summary of the model first.

    Args:
        runs: what each rank measured, by kind of evidence.
        rungs: names of the ladder's rungs, the lowest first.
        collectives: of a forward of the model.
    """
    found = {
        "summary": _summary(runs),
        "times": _times(runs),
        "verdicts": _verdicts(runs),
    }
    found["work"] = _flat(runs, "work")
    found["model_work"] = pd.DataFrame(
        [
            {"evidence": evidence, "form": form, "rank": rank, **work}
            for evidence, per_rank in runs.items()
            for rank, one in per_rank.items()
            for form, work in one["model"]["work"].items()
        ]
    )
    found["ladder"] = _ladder(runs, rungs, collectives)
    found["device"] = _flat(runs, "device")
    return found


def _flat(runs: Runs, name: str) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"evidence": evidence, "rank": rank, **row}
            for evidence, per_rank in runs.items()
            for rank, one in per_rank.items()
            for row in one[name]
        ]
    )


def _model(per_rank: PerRank[dict[str, Any]]) -> dict[str, Measurement]:
    forms = per_rank[0]["model"]["samples"]
    return {
        form: slowest(form, {r: one["model"]["samples"][form] for r, one in per_rank.items()})
        for form in forms
    }


def model_verdicts(runs: Runs) -> list[Verdict]:
    """The model, form against form, each held against how far `in place` strayed from itself in the same rounds."""
    found = []
    for evidence, per_rank in runs.items():
        taken = _model(per_rank)
        floor = noise_floor(taken[AGAIN], taken[IN_PLACE])
        others = [form for form in per_rank[0]["model"]["forms"] if form != IN_PLACE]
        floors = {form: 1.0 if form == AGAIN else floor for form in (AGAIN, *others)}
        found += [
            compare(taken[form], taken[IN_PLACE], floor=least, evidence=evidence)
            for form, least in floors.items()
        ]
    return found


def _summary(runs: Runs) -> pd.DataFrame:
    first = next(iter(runs.values()))[0]["model"]["work"]
    rows = []
    for form, work in first.items():
        row: dict[str, Any] = {"model, eager": form, **work}
        for evidence, per_rank in runs.items():
            taken = _model(per_rank)[form]
            row[f"{evidence}: ms"] = round(taken.median * 1e3, 2)
            row[f"{evidence}: p10-p90"] = f"{taken.p10 * 1e3:.2f}-{taken.p90 * 1e3:.2f}"
        rows.append(row)
    return pd.DataFrame(rows)


def _calls(per_rank: PerRank[dict[str, Any]], key: Any, stage: str) -> dict[str, Measurement]:
    """Every form of one collective at one size: seconds of the slowest rank, round by round."""
    i = STAGES[stage]
    forms = per_rank[0]["laps"][key]
    return {
        form: slowest(form, {r: one["laps"][key][form][i] for r, one in per_rank.items()}) for form in forms
    }


def _each(runs: Runs) -> Any:
    for evidence, per_rank in runs.items():
        for key in per_rank[0]["laps"]:
            yield evidence, per_rank, key


def _times(runs: Runs) -> pd.DataFrame:
    rows = [
        {
            **{"evidence": evidence, "collective": key[0], "bytes": key[1], "form": form, "stage": stage},
            **{"us": taken.median * 1e6, "p10_us": taken.p10 * 1e6, "p90_us": taken.p90 * 1e6, "n": taken.n},
        }
        for evidence, per_rank, key in _each(runs)
        for stage in STAGES
        for form, taken in _calls(per_rank, key, stage).items()
    ]
    return pd.DataFrame(rows)


def _verdicts(runs: Runs) -> pd.DataFrame:
    """Functional against in place until done, against async_op=True until the call is back; and A against A."""
    rows = []
    for evidence, per_rank, key in _each(runs):
        done, back = _calls(per_rank, key, DONE), _calls(per_rank, key, RETURN)
        floor = noise_floor(done[AGAIN], done[IN_PLACE])
        found = {
            CONTROL: (done[AGAIN], done[IN_PLACE], 1.0),
            DONE: (done[FUNCTIONAL], done[IN_PLACE], floor),
        }
        if ASYNC in back:
            found[RETURN] = (back[FUNCTIONAL], back[ASYNC], floor)
        for stage, (a, b, least) in found.items():
            case = {"collective": key[0], "bytes": key[1], "stage": stage}
            rows.append(compare(a, b, floor=least, evidence=evidence, case=case).row())
    return pd.DataFrame(rows)


def _ladder(runs: Runs, rungs: Sequence[str], collectives: int) -> pd.DataFrame:
    """What each rung adds to one collective of the model, in us: the difference of its median to the rung below.

    The last row of each evidence is torch's functional all-reduce: what it takes longer than the top rung is not
    explained by the ladder.
    """
    rows = []
    for evidence, per_rank in runs.items():
        taken = _model(per_rank)
        floor = noise_floor(taken[AGAIN], taken[IN_PLACE])
        steps = [IN_PLACE, *rungs, FUNCTIONAL]
        for below, step in zip([None, *steps], steps, strict=False):
            now, before = taken[step], taken[below] if below else None
            us = 1e6 / collectives
            rows.append(
                {
                    **{"evidence": evidence, "rung": "not explained" if step == FUNCTIONAL else step},
                    **{"us": now.median * us, "p10_us": now.p10 * us, "p90_us": now.p90 * us, "n": now.n},
                    "added_us": (now.median - before.median) * us if before else 0.0,
                    "than the rung below": compare(now, before, floor=floor).outcome if before else "",
                }
            )
    return pd.DataFrame(rows)


def size(nbytes: float) -> str:
    """A size as people write it.

    >>> size(4), size(16384), size(64 << 20)
    ('4 B', '16 KB', '64 MB')
    """
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:g} {unit}"
    return f"{nbytes:g} B"
