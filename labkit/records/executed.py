"""Where executed graph breaks stand on the time axis."""

from __future__ import annotations

import pandas as pd

__all__ = ["break_times"]


def break_times(events: pd.DataFrame, breaks: pd.DataFrame) -> pd.DataFrame:
    """Place every executed break on the time axis.

    A region whose compile ended in a break executes it each time it runs, when its compiled part is done.

    Args:
        events: A record's events, or those of one forward, with their times as `start` and `end` in any unit.
        breaks: Of the record.

    Returns:
        One row an execution, in the order of time: the columns of its region's event, `at` in the unit of the events,
        reason and place. `Record.counts` has their mean per forward, from the column `executed`.
    """
    keys = ["rank", "compile_id"]
    broken = breaks[breaks["kind"] == "break"].drop_duplicates(keys)
    runs = _runs(events).drop(columns="place", errors="ignore")
    return runs.merge(broken[[*keys, "reason", "place"]], on=keys).sort_values("at", kind="stable")


def _runs(events: pd.DataFrame) -> pd.DataFrame:
    """Every run of a region with the time `at` when its compiled part was done."""
    runs = events[events["kind"] == "region"].sort_values("start")
    inside = events[events["kind"] == "compiled"][["rank", "compile_id", "start", "end"]]
    inside = inside.rename(columns={"end": "at"}).sort_values("start")
    if inside.empty:
        return runs.assign(at=runs["start"])
    runs = pd.merge_asof(runs, inside, on="start", by=["rank", "compile_id"], direction="forward")
    # a region with nothing to compute before its break calls no kernel: its break is where it starts
    return runs.assign(at=runs["at"].where(runs["at"] <= runs["end"], runs["start"]))
