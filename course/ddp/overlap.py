"""One backward on the clock: the steps that a rank noted, as a table and as timelines of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from course.shared.streams import Timeline
from course.shared.streams.timeline import SPANS

__all__ = ["table_of", "timelines"]


Notes = Mapping[int, Mapping[str, list[dict[str, Any]]]]


def table_of(notes: Notes, control: str, hidden: Callable[[dict[str, Any]], float]) -> pd.DataFrame:
    """Of each way: its messages, and medians over the rounds: the length of a step, what it saves, what it hides.

    Args:
        notes: as `timelines` takes them.
        control: the way that the others are compared with, round by round.
        hidden: the ms of a rank's step in which it computed beside a message.

    >>> step = {"begin": 0.0, "done": 2.0, "end": 3.0, "sent": [(0.5, 1.0, 3.0)]}
    >>> table = table_of({0: {"a": [step], "b": [step | {"end": 4.0}]}}, "b", lambda one: 7.0)
    >>> float(table.loc["a", "saved, ms"])
    1000.0
    """
    steps = {
        name: list(zip(*(mine[name] for mine in notes.values()), strict=True))
        for name in next(iter(notes.values()))
    }
    took = {
        name: pd.Series(
            [max(step["end"] for step in each) - max(step["begin"] for step in each) for each in rounds]
        )
        for name, rounds in steps.items()
    }
    rows = {
        name: {
            "messages": len(rounds[0][0]["sent"]),
            "from backward's begin, ms": took[name].median() * 1e3,
            "saved, ms": (took[control] - took[name]).median() * 1e3,
            "hidden, ms": pd.Series([min(map(hidden, each)) for each in rounds]).median(),
        }
        for name, rounds in steps.items()
    }
    return pd.DataFrame(rows).T.round(1).rename_axis("way")


def timelines(notes: Notes, label: str) -> dict[str, Timeline]:
    """Place the middle step of each way on a clock: backward, and each message once all ranks have entered it.

    Args:
        notes: by rank and way, a dict for each step, in seconds of one clock for all ranks: begin and done of the
            backward, end of the step, sent: of each message, when this rank entered it, it was summed, and it ended.
        label: the run label.

    Returns:
        By name of the way, a timeline in ms since the first rank's backward began.

    >>> step = {"begin": 0.0, "done": 2.0, "end": 3.0, "sent": [(0.5, 1.0, 3.0)]}
    >>> timelines({0: {"a": [step]}}, "gloo · cpu")["a"].hidden()
    0.5
    """
    found = {}
    for name in next(iter(notes.values())):
        steps = {rank: mine[name] for rank, mine in notes.items()}
        lengths = [
            max(one["end"] - one["begin"] for one in each) for each in zip(*steps.values(), strict=True)
        ]
        middle = sorted(range(len(lengths)), key=lengths.__getitem__)[len(lengths) // 2]
        chosen = {rank: mine[middle] for rank, mine in steps.items()}
        zero = min(step["begin"] for step in chosen.values())
        rows = []
        for rank, step in chosen.items():
            rows.append((rank, "backward", "backward", "compute", step["begin"], step["done"]))
            for i, (entered, summed, ended) in enumerate(step["sent"], 1):
                rows.append((rank, "link", "waits for its peer, and sums", "synchronize", entered, summed))
                rows.append((rank, "link", f"message {i}", "collective", summed, ended))
        spans = pd.DataFrame(rows, columns=list(SPANS))
        spans[["start", "end"]] = (spans[["start", "end"]] - zero) * 1e3
        found[name] = Timeline(name, label, "ms", spans)
    return found
