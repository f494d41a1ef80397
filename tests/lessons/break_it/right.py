"""Right answers to the exercises of lesson 15 that take another way than the lesson's solutions."""

from __future__ import annotations

import io
import threading
import time

import torch
import torch.distributed as dist
from lessons.break_it import wrong


class InIntegers:
    """Bits as integers, compared by all-reduces of minimum and maximum; the fault swaps two elements."""

    def fault(self, x, rank):
        return x[[1, 2, 0, 3]] if rank == 0 else x

    def defence(self, x):
        least, most = x.view(torch.int32).clone(), x.view(torch.int32).clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        if not torch.equal(least, most):
            raise AssertionError("drift")

    def judge(self, ends):
        return {end.said.partition(":")[0] for end in ends} == {"AssertionError"}


class ByCounters:
    """Counts before and after; the fault warms up one tensor of two."""

    def warm_up(self, run, served, fault):
        for x in served[: 1 if fault else None]:
            run(x)

    def defence(self, serve):
        counters = torch._dynamo.utils.counters["stats"]
        before = counters["unique_graphs"]
        serve()
        if counters["unique_graphs"] != before:
            raise RuntimeError("compiled after the warmup")

    def judge(self, ends):
        return all("compiled after" in end.said for end in ends)


class BySetting(wrong.Guards):
    """Dynamo's own setting; the fault warms up another dtype."""

    def warm_up(self, run, served, fault):
        for x in served:
            run(x.double() if fault else x)

    def defence(self, serve):
        with torch._dynamo.config.patch(error_on_recompile=True):
            serve()

    def judge(self, ends):
        return all(end.how == "raised" and "Recompil" in end.said for end in ends)


class BySaving:
    """torch.save pickles, too; the fault is a generator."""

    def fault(self):
        return (x for x in ())

    def defence(self, message):
        try:
            torch.save(message, io.BytesIO())
        except Exception as error:
            raise ValueError("no message") from error

    def judge(self, ends):
        return [end.value for end in ends] == ["ValueError: no message", 0]


def by_turns(store, window, patience, on_silence):
    """Count turns of the watching thread in the place of seconds: while the worker stands still, none passes."""
    turns = dict.fromkeys(("heartbeat", "step"), 0)
    most = {"heartbeat": 10, "step": 10 * patience / window}

    def listen():
        last = {}
        while True:
            for key in most:
                if (now := store.get(key)) != last.get(key):
                    last[key], turns[key] = now, 0
            time.sleep(window / 10)

    def watch():
        while all(turns[key] <= most[key] for key in most):
            time.sleep(window / 10)
            for key in most:
                turns[key] += 1
        on_silence()

    for part in (listen, watch):
        threading.Thread(target=part, daemon=True).start()


def as_sets():
    return {job: ({ranks[0]}, *more) for job, (ranks, *more) in wrong.RIGHT_JOBS.items()}


def warmed_up():
    return {**wrong.RIGHT_JOBS, "B": ([0], "limit too short", "warm up before the watchdog starts")}


def warmed_up_for_the_limit():
    return {**wrong.RIGHT_JOBS, "B": ([1], "limit too short", "warm up before the watchdog starts")}


RIGHT = {
    "break_it.digest": (InIntegers,),
    "break_it.guards": (ByCounters, BySetting),
    "break_it.preflight": (BySaving, wrong.Preflight),
    "break_it.watchdog": (by_turns,),
    "break_it.jobs": (as_sets, warmed_up, warmed_up_for_the_limit),
}
