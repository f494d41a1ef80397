"""Plausible wrong answers to the exercises of lesson 15, each with words of the hint that is meant for it."""

from __future__ import annotations

import pickle
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def gather(value):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


class Digest:
    def fault(self, x, rank):
        return x + torch.tensor([1.0, 0.0, 0.0, 0.0]) if rank == 1 else x

    def defence(self, x):
        if len(set(gather(x.numpy().tobytes()))) > 1:
            raise ValueError("inputs differ")

    def judge(self, ends):
        return all(end.how == "raised" and "inputs differ" in end.said for end in ends)


class ByValue(Digest):
    def defence(self, x):
        if not all(torch.equal(x, other) for other in gather(x)):
            raise ValueError("inputs differ")


class ByTolerance(Digest):
    def defence(self, x):
        if not all(torch.allclose(x, other, equal_nan=True) for other in gather(x)):
            raise ValueError("inputs differ")


class BySum(Digest):
    def defence(self, x):
        if len(set(gather(float(x[:3].sum())))) > 1:
            raise ValueError("inputs differ")


class ByText(Digest):
    def defence(self, x):
        if len(set(gather(repr(x)))) > 1:
            raise ValueError("inputs differ")


class ByNumbers(Digest):
    def defence(self, x):
        if len(set(gather(repr(x.tolist())))) > 1:
            raise ValueError("inputs differ")


class WithoutNaN(Digest):
    def defence(self, x):
        if len(set(gather(x.nan_to_num().numpy().tobytes()))) > 1:
            raise ValueError("inputs differ")


class OfTwoRanks(Digest):
    def defence(self, x):
        first, second, *_ = gather(x.numpy().tobytes())
        if first != second:
            raise ValueError("inputs differ")


class AddsUp(Digest):
    def defence(self, x):
        mine = x.view(torch.int32).clone()
        dist.broadcast(mine, 0)
        unlike = torch.tensor(float(not torch.equal(mine, x.view(torch.int32))))
        dist.all_reduce(unlike)
        dist.all_reduce(x)  # of the defence's own, and not of a copy
        if unlike:
            raise ValueError("inputs differ")


class AnyRuntimeError(Digest):
    def defence(self, x):
        if len(set(gather(x.numpy().tobytes()))) > 1:
            raise RuntimeError("inputs differ")

    def judge(self, ends):
        return all(end.how == "raised" and end.said.startswith("RuntimeError") for end in ends)


class RankZeroRaises(Digest):
    def defence(self, x):
        if len(set(gather(x.numpy().tobytes()))) > 1 and dist.get_rank() == 0:
            raise ValueError("inputs differ")


class NoFault(Digest):
    def fault(self, x, rank):
        return x


class AnyError(Digest):
    def judge(self, ends):
        return all(end.how == "raised" for end in ends)


class Always(Digest):
    def judge(self, ends):
        return True


class LooksAtOne(Digest):
    def judge(self, ends):
        return "inputs differ" in ends[0].said


class Guards:
    def warm_up(self, run, served, fault):
        for x in [torch.ones(7, 4)] if fault else served:
            run(x)

    def defence(self, serve):
        with torch.compiler.set_stance("fail_on_recompile"):
            serve()

    def judge(self, ends):
        return all(end.how == "raised" and "fail_on_recompile" in end.said for end in ends)


class WarmsOne(Guards):
    def warm_up(self, run, served, fault):
        run(served[0])


class FaultWarmsAll(Guards):
    def warm_up(self, run, served, fault):
        for x in served:
            run(x)


class OnlyServes(Guards):
    def defence(self, serve):
        serve()


class ByTime(Guards):
    def defence(self, serve):
        began = time.monotonic()
        serve()
        if time.monotonic() - began > 0.2:
            raise RuntimeError("fail_on_recompile")


class GreenOnReturn(Guards):
    def judge(self, ends):
        return all(end.how in ("raised", "returned") for end in ends)


class Preflight:
    def fault(self):
        return threading.Lock()

    def defence(self, message):
        pickle.dumps(message)

    def judge(self, ends):
        return all(e.how == "returned" for e in ends) and bool(ends[0].value) and ends[1].value == 0


class LooksForLocks(Preflight):
    def fault(self):
        return {"lock": threading.Lock()}

    def defence(self, message):
        if "lock" in (message or {}):
            raise TypeError("a lock")


class Picky(Preflight):
    def defence(self, message):
        if not isinstance(message, dict):
            raise TypeError("no dict")
        pickle.dumps(message)


class OnlyTheError(Preflight):
    def judge(self, ends):
        return ends[0].how == "returned" and bool(ends[0].value) and ends[1].how == "returned"


class OnlyTheCount(Preflight):
    def judge(self, ends):
        return ends[0].how == "returned" and ends[1].value == 0


class CanBeSent(Preflight):
    def fault(self):
        return {"steps": 4}


class NobodyDied(Preflight):
    def judge(self, ends):
        return all(end.how != "exited" for end in ends)


def watching(limits, store, on_silence):
    changed, last = dict.fromkeys(limits, time.monotonic()), {}

    def listen():
        while True:
            for key in limits:
                if (now := store.get(key)) != last.get(key):
                    last[key], changed[key] = now, time.monotonic()
            time.sleep(0.04)

    def watch():
        while all(time.monotonic() - changed[key] < limit for key, limit in limits.items()):
            time.sleep(0.04)
        on_silence()

    for part in (listen, watch):
        threading.Thread(target=part, daemon=True).start()


def heartbeat_only(store, window, patience, on_silence):
    watching({"heartbeat": window}, store, on_silence)


def step_only(store, window, patience, on_silence):
    watching({"step": patience}, store, on_silence)


def one_window(store, window, patience, on_silence):
    watching({"heartbeat": window, "step": window}, store, on_silence)


def leader_only(store, window, patience, on_silence):
    watching({"heartbeat": window, "step": patience}, store, on_silence)


def one_thread(store, window, patience, on_silence):
    def watch():
        limits, last = {"heartbeat": window, "step": patience}, {}
        changed = dict.fromkeys(limits, time.monotonic())
        while all(time.monotonic() - changed[key] < limit for key, limit in limits.items()):
            for key in limits:
                if (now := store.get(key)) != last.get(key):
                    last[key], changed[key] = now, time.monotonic()
            time.sleep(0.04)
        on_silence()

    threading.Thread(target=watch, daemon=True).start()


def with_a_timeout(store, window, patience, on_silence):
    """One thread, which asks and then decides: it counts on the store's timeout."""

    def watch():
        mine, last = store.clone(), {}
        mine.set_timeout(timedelta(seconds=window / 2))
        limits = {"heartbeat": window, "step": patience}
        changed = dict.fromkeys(limits, time.monotonic())
        late = False
        while not late:
            time.sleep(window / 10)
            for key in limits:
                try:
                    now = mine.get(key)
                except dist.DistStoreError:
                    continue
                if now != last.get(key):
                    last[key], changed[key] = now, time.monotonic()
            late = any(time.monotonic() - changed[key] > limit for key, limit in limits.items())
        on_silence()

    threading.Thread(target=watch, daemon=True).start()


def in_the_foreground(store, window, patience, on_silence):
    before = None
    while (now := store.get("heartbeat")) != before:
        before = now
        time.sleep(window)
    on_silence()


RIGHT_JOBS = {
    "A": ([1], "a call too few", "agree before a call is left out"),
    "B": ([1], "limit too short", "longer patience"),
    "C": ([0], "half a message", "check the body before the header"),
}


def who_raises():
    return {**RIGHT_JOBS, "A": ([0], "a call too few", "agree before a call is left out")}


def a_wedge():
    return {**RIGHT_JOBS, "B": ([1], "leader wedged", "restart the leader")}


def the_receiver():
    return {**RIGHT_JOBS, "C": ([1], "half a message", "check the body before the header")}


def announced():
    return {**RIGHT_JOBS, "A": ([1], "a call too few", "announce each call")}


def more_time():
    return {**RIGHT_JOBS, "A": ([1], "a call too few", "longer group timeout")}


WRONG = {
    "break_it.digest": {
        ByValue: "NaN is not equal to NaN",
        ByTolerance: "a tolerance, or a text of x",
        BySum: "a sum does not see a swap",
        ByText: "a tolerance, or a text of x",
        ByNumbers: "so is another NaN",
        WithoutNaN: "so is another NaN",
        OfTwoRanks: "on three it is wrong",
        AddsUp: "give collectives a copy",
        AnyRuntimeError: "torch raises RuntimeError for much",
        RankZeroRaises: "compare all ranks with all",
        NoFault: "the fault has to change the result",
        AnyError: "any error is not the expected one",
        Always: "tests nothing",
        LooksAtOne: "look at all ends",
    },
    "break_it.guards": {
        WarmsOne: "warm up with each tensor",
        FaultWarmsAll: "something is left to compile",
        OnlyServes: "compare counters before and after",
        ByTime: "warm up with each tensor",
        GreenOnReturn: "tests nothing",
    },
    "break_it.preflight": {
        LooksForLocks: "let every error out",
        Picky: "has to pass, whatever it holds",
        OnlyTheError: "the error, and the count",
        OnlyTheCount: "the error, and the count",
        CanBeSent: "pickle.dumps refuses",
        NobodyDied: "tests nothing",
    },
    "break_it.watchdog": {
        heartbeat_only: "look whether `step` changes",
        step_only: "look whether `heartbeat` changes",
        one_window: "note the time of each key's last change",
        one_thread: "no timeout ends a call of it",
        with_a_timeout: "no timeout ends a call of it",
        leader_only: "so your thread did not run",
        in_the_foreground: "starts a daemon thread and returns",
    },
    "break_it.jobs": {
        who_raises: "who left a batch out",
        a_wedge: "does it wait, or does it compute",
        the_receiver: "what did the other rank write",
        announced: "leaves it out by itself",
        more_time: "the same wait takes longer",
    },
}
