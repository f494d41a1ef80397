"""One backward on the clock: the steps that a rank noted, as timelines of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from course.shared.streams import Timeline
from course.shared.streams.timeline import SPANS

__all__ = ["timelines"]


def timelines(notes: Mapping[int, Mapping[str, list[dict[str, Any]]]], label: str) -> dict[str, Timeline]:
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
