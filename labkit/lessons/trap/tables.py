"""The eager trap's tables, out of what the ranks measured: times, verdicts over a noise floor, the crossover."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.lessons.trap.calls import AGAIN, ASYNC, FUNCTIONAL, IN_PLACE
from labkit.lessons.trap.on_ranks import STEPS, WAITED
from labkit.report import PerRank
from labkit.timing import Measurement, Verdict, compare, noise_floor, slowest

__all__ = ["crossover", "model_verdicts", "tables"]

Runs = dict[str, PerRank[dict[str, Any]]]
RETURN, DONE, CONTROL = "return", "done", "control"
STAGES = {RETURN: 0, DONE: 1}


def tables(runs: Runs, collectives: int) -> dict[str, pd.DataFrame]:
    """Every table of the report, the summary of the model first. collectives: of a forward of the model."""
    found = {
        "summary": _summary(runs),
        "times": _times(runs),
        "verdicts": _verdicts(runs),
    }
    found["crossover"] = crossover(found["verdicts"])
    found["work"] = _flat(runs, "work")
    found["model_work"] = pd.DataFrame(
        [
            {"evidence": evidence, "form": form, "rank": rank, **work}
            for evidence, per_rank in runs.items()
            for rank, one in per_rank.items()
            for form, work in one["model"]["work"].items()
        ]
    )
    found["ladder"] = _ladder(runs)
    found["extra"] = _extra(runs, found["ladder"], collectives)
    found["breakdown"] = _flat(runs, "breakdown")
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
        floors = {form: 1.0 if form == AGAIN else floor for form in (AGAIN, *taken) if form != IN_PLACE}
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


def crossover(verdicts: pd.DataFrame) -> pd.DataFrame:
    """From which size on functional is not told slower until done, at this and every larger size that was measured.

    `bytes` is NaN where it is slower at the largest size too. `at_most` is the upper end of the widest interval from
    there on: what is not told may still be so much. `verdicts` has evidence, collective, bytes, stage, outcome, high.

    >>> import pandas as pd
    >>> rows = [("shm", "all_reduce", n, "done", said, 1.5) for n, said in ((4, "slower"), (1024, "cannot tell"))]
    >>> crossover(pd.DataFrame(rows, columns=["evidence", "collective", "bytes", "stage", "outcome", "high"]))
      evidence  collective  bytes  largest  at_most
    0      shm  all_reduce   1024     1024      1.5
    """
    rows = []
    for (evidence, collective), part in verdicts[verdicts["stage"] == DONE].groupby(
        ["evidence", "collective"], sort=False
    ):
        by_size = part.sort_values("bytes")
        at: int | None = None
        most: float | None = None
        for row in by_size[::-1].to_dict("records"):
            if row["outcome"] == "slower":
                break
            at, most = int(row["bytes"]), max(most or 0.0, row["high"])
        largest = int(by_size["bytes"].iloc[-1])
        rows.append(
            {"evidence": evidence, "collective": collective, "bytes": at, "largest": largest, "at_most": most}
        )
    return pd.DataFrame(rows)


def _ladder(runs: Runs) -> pd.DataFrame:
    """What each layer adds to a small all-reduce: the median over the rounds of the difference to the step before."""
    rows = []
    for evidence, per_rank in runs.items():
        taken = {
            step: slowest(step, {r: one["ladder"][step] for r, one in per_rank.items()})
            for step in (*STEPS, AGAIN)
        }
        floor = noise_floor(taken[AGAIN], taken[IN_PLACE])
        before = None
        for step, words in STEPS.items():
            now = taken[step]
            added = now.median - (before.median if before else 0.0)
            outcome = compare(now, before, floor=floor).outcome if before else ""
            rows.append(
                {
                    **{"evidence": evidence, "step": words, "us": now.median * 1e6, "p10_us": now.p10 * 1e6},
                    **{
                        "p90_us": now.p90 * 1e6,
                        "added_us": added * 1e6,
                        "than the step before": outcome,
                        "n": now.n,
                    },
                }
            )
            before = now
    return pd.DataFrame(rows)


def _extra(runs: Runs, ladder: pd.DataFrame, collectives: int) -> pd.DataFrame:
    """What a functional forward of the model takes more than one in place, in ms, and how much of it is explained.

    `calls` is what the ladder's layers add to one call, up to its first use, times the calls of a forward. `first
    use` is measured in the model: the results used as they come, against results waited for at once. `rest` is
    `extra` less `calls`: what the calls of a model cost more than the same small call in a loop.
    """
    rows = []
    for evidence, per_rank in runs.items():
        taken = _model(per_rank)
        steps = ladder[ladder["evidence"] == evidence].set_index("step")["us"]
        calls = collectives * (steps[STEPS["used"]] - steps[STEPS["in place"]]) / 1e3
        extra = _differences(taken[FUNCTIONAL], taken[IN_PLACE])
        parts = {
            "extra": extra,
            "calls": {"ms": calls},
            "rest": {"ms": extra["ms"] - calls},
            "first use": _differences(taken[FUNCTIONAL], taken[WAITED]),
        }
        rows += [
            {"evidence": evidence, "part": part, "collectives": collectives, **row}
            for part, row in parts.items()
        ]
    return pd.DataFrame(rows)


def _differences(a: Measurement, b: Measurement) -> dict[str, float]:
    """How much longer a took than b, round by round, in ms: median, p10 and p90."""
    more = pd.Series([(one - other) * 1e3 for one, other in zip(a.samples, b.samples, strict=True)])
    return {"ms": more.median(), "p10_ms": more.quantile(0.1), "p90_ms": more.quantile(0.9)}
