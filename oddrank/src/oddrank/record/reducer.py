"""DDP's waits for its gradients, told from the ranges around them: its reducer waits in C++, where no range shows it.

A hook inside the backward starts each bucket's all-reduce. When the last gradient is there, the reducer waits for the
buckets one after another and copies each into the gradients (`Reducer::finalize_backward` in
torch/csrc/distributed/c10d/reducer.cpp). It waits for a future, and gloo's thread completes that future before it ends
its own range (`AsyncWork::finishWorkGloo` in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp). So on a busy machine
the range of a transfer can end milliseconds after the program has gone on.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import replace

from oddrank.record.profile import RawEvent

__all__ = ["WAIT", "waits"]

WAIT = "ddp::wait"  # labkit's own name
AUTOGRAD = "autograd::engine::evaluate_function"
COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
AFTER = (COPY, "aten::as_strided")  # what the reducer does with a bucket that has arrived
FORWARD = "DistributedDataParallel.forward"


def waits(main: Sequence[RawEvent], loose: Sequence[RawEvent]) -> tuple[list[RawEvent], list[RawEvent]]:
    """Find DDP's waits on the main thread, and cut gloo's transfers where their wait ends.

    Args:
        main: The ranges of the main thread.
        loose: Asynchronous ranges, gloo's transfers among them.

    Returns:
        The waits as ranges of their own, and `loose` with no transfer that ends after its wait.

    The reducer waits once for each bucket, between the last range of the backward and what it does with the last
    bucket. So of the gaps there in which a transfer is under way, as many are waits as there are transfers: the
    longest ones. A transfer of that backward that ends after the last gap is cut there. Where the reducer does
    nothing with a bucket, the wait reaches to the end of the last transfer, or to what the program does next.
    Without DDP in the profile nothing is known: then there is no wait, and `loose` comes back as it was.

    >>> main = [RawEvent(FORWARD, 0, 5, 1), RawEvent(AUTOGRAD, 5, 10, 1), RawEvent("c10d::allreduce_", 6, 8, 1)]
    >>> found, cut = waits([*main, RawEvent(COPY, 30, 31, 1)], [RawEvent("gloo:all_reduce", 7, 40, 2, is_async=True)])
    >>> [(e.name, e.start, e.end) for e in [*found, *cut]]
    [('ddp::wait', 10, 30), ('gloo:all_reduce', 7, 30)]
    """
    found: list[RawEvent] = []
    transfers = list(loose)
    for like, begin, gaps, told in _backwards(main):
        last = gaps[-1][1]
        mine = [i for i, t in enumerate(transfers) if t.name.startswith("gloo:") and begin <= t.start < last]
        waited = []
        for start, end in gaps:
            under_way = [t.end for t in (transfers[i] for i in mine) if t.start < end and t.end > start]
            if under_way and end > start:
                waited.append((start, end if told else min(end, max(under_way))))
        longest = sorted(waited, key=lambda gap: gap[0] - gap[1])[: len(mine)]
        found += [
            replace(like, name=WAIT, start=start, end=int(end), shapes="", launch=0) for start, end in longest
        ]
        for i in mine:
            transfers[i] = replace(transfers[i], end=int(min(transfers[i].end, last)))
    return found, transfers


Gaps = list[tuple[int, float]]


def _backwards(main: Sequence[RawEvent]) -> list[tuple[RawEvent, int, Gaps, bool]]:
    """Each backward in which DDP started a collective: a range of it, when that started, and the gaps after it.

    The last one says whether the gaps end with something that the reducer did.
    """
    names = {event.name for event in main}
    if COPY not in names and FORWARD not in names:
        return []
    steps: list[RawEvent] = []  # ranges of a backward and of the reducer, without what is nested in them
    started: dict[int, int] = {}  # a step, and when it started its first collective
    moments: list[int] = []  # when this thread begins or ends anything else
    for event in sorted(main, key=lambda e: (e.start, -e.end)):
        if steps and event.start < steps[-1].end:
            if event.name.startswith("c10d::"):
                started.setdefault(len(steps) - 1, event.start)
        elif event.name.startswith((AUTOGRAD, *AFTER)):
            steps.append(event)
        else:
            moments += [event.start, event.end]
    moments.sort()
    found = []
    at = -1
    for first, begin in started.items():
        if first <= at:
            continue  # of a backward that has been looked at
        at = first
        gaps: Gaps = []
        while True:
            end = steps[at].end
            then = bisect.bisect_left(moments, end)
            other = moments[then] if then < len(moments) else math.inf
            after = steps[at + 1] if at + 1 < len(steps) and steps[at + 1].start <= other else None
            if after is None or (gaps and after.name not in AFTER):
                break
            if after.name in AFTER:
                gaps.append((end, after.start))
            at += 1
        found.append((steps[first], begin, gaps or [(end, other)], bool(gaps)))
    return found
