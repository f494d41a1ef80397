"""How first calls grow with depth: a report of them, and lines that are fitted in each round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.report import Report
from labkit.timing import CONFIDENCE, Times, Verdict, wider_interval

__all__ = ["bends", "compare_slopes", "fit", "growth"]

VIEW = "course.guards.depth_figures:figure"
WHOLE, BLOCKS, NESTED = "whole", "block by block", "nested region"
FORMS = (WHOLE, BLOCKS, NESTED)
PAIRS = ((BLOCKS, WHOLE), (NESTED, WHOLE), (BLOCKS, NESTED))
LEAST_DEPTHS = 4  # for a word on how the seconds of a further block grow
TOLERANCE = 1e-4


def growth(rows: Sequence[dict[str, Any]], label: str, compiler: str = "eager") -> Report:
    """Make the report of first calls.

    Args:
        rows: a row for each first call, as `one_depth` of lesson 09 returns them, with the rank.
        label: the run label.
        compiler: the backend that compiled.

    Returns:
        A report. `bends` says whether a further block costs more in deep models than in shallow ones. `fits` has for
        each form the line seconds = first + per block * depth, and the exponent p of seconds ~ depth^p over the upper
        half of the depths: fitted in each round, and the median of the rounds with its interval. `slopes` compares two
        forms' seconds a block, round by round.

    Raises:
        ValueError: all calls are of one depth.
    """
    samples = pd.DataFrame(rows)  # in the order in which they were taken, which each round draws anew
    samples = samples.drop_duplicates(["depth", "form", "round", "rank"])
    if samples["depth"].nunique() < 2:
        raise ValueError(f"growth takes two different depths at least, got {samples['depth'].unique()}")
    places = samples["form"].map(FORMS.index)
    samples = samples.assign(place=places).sort_values(["depth", "place", "round", "rank"], ignore_index=True)
    samples = samples.drop(columns="place")
    graphs = samples.groupby(["depth", "form", "rank"], sort=False)[["graphs", "traced", "error"]].max()
    first = samples.groupby(["depth", "form", "round"], sort=False)["seconds"].max().reset_index()
    by = first.groupby(["depth", "form"], sort=False)["seconds"]
    summary = by.quantile([0.1, 0.5, 0.9]).unstack().set_axis(["p10_s", "median_s", "p90_s"], axis=1)
    summary["n"] = by.count()
    tables = {
        "bends": bends(first),
        "fits": fit(first),
        "slopes": compare_slopes(first),
        "summary": summary.reset_index(),
        "samples": samples,
        "graphs": graphs.reset_index(),
    }
    worst = float(samples["error"].max())
    agree = "agree" if worst <= TOLERANCE else "DO NOT AGREE"
    notes = [f"outputs {agree} with eager: largest difference {worst:.1e}"]
    made = {"compiler": compiler}
    return Report("depth", "Compile time over depth", label, tables, _verdicts(samples), made, notes, VIEW)


def fit(first: pd.DataFrame) -> pd.DataFrame:
    """The growth of each form's seconds (columns depth, form, round, seconds) with depth: a line, and an exponent.

    In each round a line `first_s` + `per_block_s` * depth is fitted, and the slope of log seconds over log depth in the
    upper half of the depths, at least two of them; the medians over rounds are given, the slopes with 99 % intervals
    (`labkit.timing`'s, without ends below eight rounds).

    >>> import pandas as pd
    >>> rows = [(d, "whole", r, 0.5 + 0.25 * d) for d in (1, 2, 4) for r in range(3)]
    >>> line = fit(pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"])).iloc[0]
    >>> float(line["first_s"].round(6)), float(line["per_block_s"].round(6))
    (0.5, 0.25)
    """
    found = []
    for form, rows in first.groupby("form", sort=False):
        slopes, starts, powers = _in_each_round(rows)
        first_s, per_block_s, power = (float(np.median(each)) for each in (starts, slopes, powers))
        found.append(
            (form, first_s, per_block_s, *wider_interval(slopes), power, *wider_interval(powers), len(slopes))
        )
    columns = "form first_s per_block_s per_block_low per_block_high exponent low high n"
    return pd.DataFrame(found, columns=columns.split())


def bends(first: pd.DataFrame) -> pd.DataFrame:
    """Seconds of a further block over the shallower and over the deeper half of the depths, and their difference.

    Above 0, compile time grows worse than a straight line; what does not depend on depth cancels out. The difference
    is taken in each round, and given as the median with its 99 % interval. There is an outcome other than 'cannot
    tell' only where the whole interval lies on one side of 0, and a sign test over the rounds holds at 99 % for all
    forms together: for three forms it needs ten rounds. No row for a form with less than four depths.

    >>> rows = [(d, "whole", r, 1 + 0.1 * d**2) for d in (1, 2, 4, 8) for r in range(8)]
    >>> found = bends(pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"])).iloc[0]
    >>> [float(found[name].round(3)) for name in ("shallow_s", "deep_s", "more_s")], found["outcome"]
    ([0.3, 1.0, 0.7], 'worse than a line')
    """
    found, forms = [], first["form"].nunique()
    for form, rows in first.groupby("form", sort=False):
        table = rows.pivot(index="depth", columns="round", values="seconds").sort_index()
        depths, middle = table.index, (len(table) - 1) // 2
        if len(depths) < LEAST_DEPTHS:
            continue
        shallow, deep = (
            (table.loc[b] - table.loc[a]) / (b - a)
            for a, b in ((depths[0], depths[middle]), (depths[middle], depths[-1]))
        )
        more = deep - shallow
        low, high = wider_interval(list(more))
        against, n = min((more > 0).sum(), (more < 0).sum()), len(more)
        by_chance = 2 * sum(math.comb(n, i) for i in range(against + 1)) / 2**n  # if the line were straight
        outcome = "worse than a line" if low > 0 else "better than a line" if high < 0 else "cannot tell"
        if by_chance * forms > 1 - CONFIDENCE:
            outcome = "cannot tell"
        found.append((form, shallow.median(), deep.median(), more.median(), low, high, outcome, n))
    return pd.DataFrame(found, columns="form shallow_s deep_s more_s low high outcome n".split())


def compare_slopes(first: pd.DataFrame) -> pd.DataFrame:
    """Two forms' seconds a block in the same rounds: the median difference, its 99 % interval, and an outcome.

    'less' or 'more' only where the whole interval lies on one side of nothing.

    >>> import pandas as pd
    >>> rows = [(d, f, r, 1 + d * (0.5 if f == "whole" else 0.25)) for d in (1, 2) for r in range(8) for f in FORMS]
    >>> found = compare_slopes(pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"]))
    >>> found[["a", "b", "outcome"]].to_dict("split")["data"][0], round(float(found["difference_s"][0]), 6)
    (['block by block', 'whole', 'less'], -0.25)
    """
    slopes = {form: _in_each_round(rows)[0] for form, rows in first.groupby("form", sort=False)}
    found = []
    for a, b in PAIRS:
        if a not in slopes or b not in slopes:
            continue
        apart = [x - y for x, y in zip(slopes[a], slopes[b], strict=True)]
        low, high = wider_interval(apart)
        outcome = "less" if high < 0 else "more" if low > 0 else "cannot tell"
        found.append((a, b, float(np.median(apart)), low, high, outcome, len(apart)))
    return pd.DataFrame(found, columns=["a", "b", "difference_s", "low", "high", "outcome", "n"])


def _in_each_round(rows: pd.DataFrame) -> tuple[list[float], list[float], list[float]]:
    """For each round: seconds a block, seconds at no block, and the exponent over the deeper half."""
    table = rows.pivot(index="depth", columns="round", values="seconds").sort_index()
    depths = table.index.to_numpy(float)
    upper = slice(min(len(depths) // 2, len(depths) - 2), None)
    lines = [np.polyfit(depths, table[i], 1) for i in table]
    powers = [np.polyfit(np.log(depths[upper]), np.log(table[i].to_numpy()[upper]), 1)[0] for i in table]
    return [float(line[0]) for line in lines], [float(line[1]) for line in lines], [float(p) for p in powers]


def _verdicts(samples: pd.DataFrame) -> list[Verdict]:
    deepest = samples["depth"].max()
    mine = samples[samples["depth"] == deepest]
    times, case = Times(mine.rename(columns={"form": "variant"})), {"blocks": int(deepest)}
    return [times.compare(a, b, case=case) for a, b in PAIRS if {a, b} <= set(times.variants)]
