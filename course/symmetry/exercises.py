"""Exercises of lesson 08: parity of settings, a gather of compile counts, a branch no rank takes alone, a watchdog."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from course.shared.harness import own_reduce
from labkit.ranks import Ranks, here
from labkit.records import record
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import compile_counts, dynamo_reset, funcol

__all__ = ["health", "parity", "repair", "watchdog"]

USUAL = {"attention": "flash", "compile": True, "fullgraph": True}
# settings of rank 1, and the words that every rank has to say; none where it has to be let through
_SETTINGS: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("ranks that are alike", dict(USUAL), ()),
    ("the same in another order", dict(reversed(USUAL.items())), ()),
    ("attention is 'paged' on rank 1", {**USUAL, "attention": "paged"}, ("attention", "flash", "paged")),
    ("rank 1 has no 'fullgraph'", {"attention": "flash", "compile": True}, ("fullgraph", "True")),
    ("rank 1 has one more, 'debug'", {**USUAL, "debug": "on"}, ("debug", "on")),
    ("'debug' is None on rank 1 and not set on others", {**USUAL, "debug": None}, ("debug", "None")),
    ("'compile' is the text 'True' on rank 1", {**USUAL, "compile": "True"}, ("compile", "True")),
)


def judge_parity(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The attempt raises on every rank where settings differ, names them, and lets equal ones through."""
    hint = "it is called as my_parity(settings) with this rank's dict, on every rank"
    for what, other, words in _SETTINGS:
        said = list(on_ranks(ranks, _parity, attempt, other, hint=hint))
        refused = [text is not None for text in said]
        finding = f"{what}: refused on {sum(refused)} of {len(said)} ranks"
        if not words and any(refused):
            raise Mistake(
                f"{finding}: {next(filter(None, said))}",
                "compare setting by setting, by name: the order in a dict means nothing",
            )
        if words and not any(refused):
            raise Mistake(
                finding,
                "compare the values, and not what they look like as text: True is not 'True'"
                if other["compile"] == "True"
                else "compare the names of both sides, too: a setting may be there on one rank only, even "
                "with the value None",
            )
        if words and not all(refused):
            raise Mistake(
                finding, "every rank has to raise, or the others go on and wait for it: compare all with all"
            )
        missing = [word for word in words for text in said if word not in str(text)]
        if missing:
            raise Mistake(
                f"{finding}, and the error does not say {missing[0]!r}",
                "name the setting, and the value that each rank has",
            )
        say(finding)


def _parity(attempt: Attempt, other: dict[str, Any]) -> str | None:
    try:
        attempt(dict(other) if here().rank == 1 else dict(USUAL))
    except NotImplementedError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


_WHEN = (
    "look at the counters after run(), which is what compiles, and inside the function by their full name, "
    "torch._dynamo.utils.counters: a variable of the notebook is a copy of them"
)


def judge_health(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The attempt returns every rank's graphs and breaks of one run, whatever was compiled before it."""
    hint = "it is called as my_health(run), calls run() once, and returns a list of dicts, one for each rank"
    for what, odd in (("ranks that are alike", None), ("two breaks on rank 1", 1)):
        seen = list(on_ranks(ranks, _health, attempt, odd, hint=hint))
        meant = [one["mine"] for one in seen]
        for rank, one in enumerate(seen):
            if one["runs"] != 1:
                raise Mistake(f"rank {rank} called run() {one['runs']} times", hint)
            if one["found"] != meant:
                finding = f"{what}: rank {rank} has {one['found']}, and Dynamo counted {meant}"
                if one["found"] == [one["mine"]]:
                    raise Mistake(finding, "gather: all_gather_object gives every rank the counts of all")
                if one["found"] == [found["before"] for found in seen]:
                    raise Mistake(finding, _WHEN)
                if _graphs(one["found"]) == _graphs(meant):
                    raise Mistake(
                        finding, "a reason can count twice: add up the values of counters['graph_break']"
                    )
                raise Mistake(
                    finding,
                    "counters go on from what was compiled before: take the difference, or clear them",
                )
        say(f"{what}: {meant}")


def _graphs(found: Any) -> list[Any] | None:
    """The graphs of each rank, if the attempt returned what it should."""
    return [of.get("graphs") for of in found if isinstance(of, dict)] if isinstance(found, list) else None


def _health(attempt: Attempt, odd: int | None) -> dict[str, Any]:
    def before(x: Any) -> Any:
        print("", end="")
        return x + 1

    def program(x: Any, broken: bool) -> Any:
        for _ in (0, 1):
            x = funcol.all_reduce(x, "sum", dist.group.WORLD)
        x = x * 2
        if broken:
            print("", end="")  # breaks the graph
        x = x + 1
        if broken:
            print("", end="")  # breaks the graph
        return x - 1

    dynamo_reset()
    torch.compile(before, backend="eager")(torch.ones(2))
    seen: dict[str, Any] = {"runs": 0, "before": {"graphs": 0, "breaks": 0}}

    def run() -> None:
        start = compile_counts()
        with torch.no_grad():
            torch.compile(program, backend="eager")(torch.ones(2), here().rank == odd)
        seen["runs"] += 1
        seen["mine"] = {name: count - start[name] for name, count in compile_counts().items()}

    seen["found"] = attempt(run)
    return {"mine": {}, **seen}


def judge_repair(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The same collectives on every rank whatever its shard holds, in one graph, with the numbers that were meant."""
    hint = "it is called as my_program(x) with this rank's shard, and returns a tensor"
    for signs in ((1, 1), (1, -1), (-1, -1)):
        seen = list(on_ranks(ranks, _run_repair, attempt, signs, hint=hint))
        counts = [found["collectives"] for found in seen]
        finding = f"shards of sign {signs}: collectives by rank {counts}, numbers {seen[0]['value']}"
        if any(found["value"] is None for found in seen):
            raise Mistake("it returns None", "return the tensor")
        if any(found["graphs"] != 1 or found["breaks"] for found in seen):
            raise Mistake(
                f"{finding}; graphs {seen[0]['graphs']}, breaks {seen[0]['breaks']}",
                "an `if` on a tensor's values breaks the graph: let the ranks choose between two tensors, torch.where",
            )
        if not all(found["close"] for found in seen):
            raise Mistake(
                f"{finding}, meant are {seen[0]['right']}",
                "decide by the sum over all ranks, which is the same everywhere: add where it is positive",
            )
        say(finding)


def _run_repair(attempt: Attempt, signs: tuple[int, int]) -> dict[str, Any]:
    # of both signs, so that the sum decides and no number alone does
    x = torch.tensor([3.0, -1.0, 1.0, 1.0]) * signs[min(here().rank, 1)] * (1 + here().rank)
    total = x.clone()
    dist.all_reduce(total)
    right = total if total.sum() > 0 else torch.zeros(4)
    dynamo_reset()
    run = torch.compile(own_reduce(attempt), backend="eager")
    with torch.no_grad(), record() as rec, rec.forward():
        y = run(x.clone())
        value = None if y is None else float(y.sum())
        close = value is not None and y.shape == right.shape and bool(torch.allclose(y, right, atol=1e-5))
    counts = rec.counts.iloc[0]
    found = {name: int(counts[name]) for name in ("collectives", "graphs", "breaks")}
    return {"value": value, "right": float(right.sum()), "close": close, **found}


WINDOW_S, BEAT_S = 0.4, 0.05
LATE_S = 5 * WINDOW_S  # by when silence has to be noticed


class _Leader:
    """A store as a worker sees it. Its leader beats, stops beating, or is stopped as a whole; then no call returns."""

    def __init__(self) -> None:
        self.kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.state, self.count, self.over = "beats", 0, threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self.over.is_set():
            if self.state == "beats":
                self.count += 1
                self.kept.set("heartbeat", str(self.count))
            time.sleep(BEAT_S)


class _Store:
    """A worker's connection to a leader's store, with the methods of TCPStore that a watchdog needs."""

    def __init__(self, leader: _Leader, timeout: float = 300.0) -> None:
        self._leader, self._seconds = leader, timeout

    def clone(self) -> _Store:
        return _Store(self._leader, self._seconds)

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._leader.kept, name)

        def call(*args: Any) -> Any:
            if self._leader.state == "stopped":
                if self._leader.over.wait(self._seconds):
                    raise SystemExit  # the check is over: ends the attempt's thread without a word
                raise dist.DistStoreError("the store does not answer")
            return method(*args)

        return call


# what the leader does, whether that is silence, and the hint where the attempt sees it otherwise
_LEADERS = (
    ("beats", False, "a beat is a change of the key's value: note the time of the last change, not of the first look"),
    ("is alive and beats no more", True,
     "the key stays in the store when the leader falls silent: look whether its value changes"),
    ("stopped", True,
     "a stopped leader's store does not answer, so a call of it does not return: let one thread ask and another watch "
     "the clock, or give the store a timeout"),
)  # fmt: skip


def judge_watchdog(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The attempt hears a leader that falls silent, in each way in which it can, and no leader that beats."""
    hint = "it is called as my_watchdog(store, window, on_silence), starts a daemon thread and returns"
    every = on_ranks(ranks, _watch_all, attempt, only=0, hint=hint)[0]
    for what, silent, mistake in _LEADERS:
        seen = every[what]
        finding = f"the leader {'is ' * (what == 'stopped')}{what}: "
        if seen["blocked"]:
            raise Mistake(f"{finding}my_watchdog does not return", hint)
        finding += "no alarm" if seen["alarm"] is None else "alarm"
        if (seen["alarm"] is not None) != silent:
            raise Mistake(finding, mistake)
        if silent and seen["alarm"] < 0.5 * WINDOW_S:
            raise Mistake(f"{finding} too early", "wait until the key has been the same for a whole window")
        if seen["alarms"] > 1:
            raise Mistake(f"{finding}, {seen['alarms']} times", "call on_silence once")
        say(finding)


def _watch_all(attempt: Attempt) -> dict[str, Any]:
    with ThreadPoolExecutor() as pool:
        seen = {what: pool.submit(_watch_in_time, attempt, what) for what, _, _ in _LEADERS}
    return {what: future.result() for what, future in seen.items()}


def _watch_in_time(attempt: Attempt, what: str) -> dict[str, Any]:
    """Watch, and watch again after an early alarm: on a busy machine the leader or who listens to it can be late."""
    for _ in range(3):
        seen = _watch(attempt, what)
        if seen["alarm"] is None or (what != "beats" and seen["alarm"] >= 0.5 * WINDOW_S):
            break
    return seen


def _watch(attempt: Attempt, what: str) -> dict[str, Any]:
    leader = _Leader()
    alarms: list[float] = []
    returned = threading.Event()
    failed: list[BaseException] = []

    def start() -> None:
        try:
            attempt(_Store(leader), WINDOW_S, lambda *seconds: alarms.append(time.monotonic()))
        except Exception as error:
            failed.append(error)
        returned.set()

    threading.Thread(target=start, daemon=True).start()
    blocked = not returned.wait(LATE_S)
    if failed:
        raise failed[0]
    time.sleep(2 * WINDOW_S)
    leader.state, since = what, time.monotonic()
    while what != "beats" and not alarms and time.monotonic() - since < LATE_S:
        time.sleep(BEAT_S)
    time.sleep(WINDOW_S)  # a second alarm would come now
    leader.over.set()
    alarm = alarms[0] - since if alarms else None
    return {"blocked": blocked, "alarm": alarm, "alarms": len(alarms)}


parity = Exercise(
    "symmetry.parity",
    "settings compared on every rank",
    "easy",
    10,
    (
        "equal settings pass in any order",
        "a difference raises on every rank, with the setting and each rank's value",
    ),
    judge_parity,
)
health = Exercise(
    "symmetry.health",
    "what every rank compiled",
    "medium",
    10,
    ("every rank gets the graphs and breaks of all", "only those of this run are counted"),
    judge_health,
)
repair = Exercise(
    "symmetry.repair",
    "a branch that no rank takes alone",
    "medium",
    10,
    (
        "1 graph and 0 breaks",
        "the same number of collectives on every rank",
        "the right numbers for any shards",
    ),
    judge_repair,
)
watchdog = Exercise(
    "symmetry.watchdog",
    "a worker whose leader falls silent",
    "hard",
    20,
    (
        "no alarm while the leader beats",
        "one alarm when the beats end",
        "and when the leader is stopped, so that its store does not answer",
    ),
    judge_watchdog,
)
