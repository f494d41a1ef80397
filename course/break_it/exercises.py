"""Lesson 15: three tests of the suite with fault, defence and judge; a watchdog; and the logs of three jobs."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from course.break_it import suite
from course.break_it.on_ranks import STALL_S, ends
from course.shared.jobs import hint_in_order, judge_jobs
from labkit import files
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too
from labkit.torch_compat import funcol

__all__ = ["JOBS", "digest", "guards", "jobs", "preflight", "watchdog"]

JOBS = files.ours("data/captured/break_jobs.log")
Say = Callable[[str], None]
End = suite.End

# ends that pass no test: how the ranks ended, and the hint for a judge that lets them pass
_NO_PASS: tuple[tuple[str, list[Any], str], ...] = (
    ("rank 1 waits until its time limit", [End("returned"), End("waited", said="waits in all_reduce")],
     "a wait is never a pass: look at every rank, and at how it ended"),
    ("every rank waits", [End("waited", said="waits in all_reduce")] * 2,
     "a wait is never a pass: look at every rank, and at how it ended"),
    ("every rank raises OutOfMemoryError", [End("raised", said="OutOfMemoryError: out of memory")] * 2,
     "any error is not the expected one: look for the words of your defence in `said`"),
    ("every rank raises another RuntimeError", [End("raised", said="RuntimeError: Connection closed by peer")] * 2,
     "torch raises RuntimeError for much: look for the words of your defence in `said`"),
    ("every rank dies", [End("exited", said="exit status -11", code=-11)] * 2,
     "a crash is not the expected error: look at `how` and `said`"),
)  # fmt: skip


def _run(ranks: Ranks, what: str, play: Callable[..., Any], *args: Any, stall: float = 20.0) -> list[Any]:
    found = ends(ranks, play, *args, stall=stall)
    if any(end.said == "NotImplementedError: " for end in found):
        raise Mistake("there is nothing to check yet: write the methods of the class first")
    for rank, end in enumerate(found):
        if "TypeError: " in end.said and "positional argument" in end.said:
            raise Mistake(f"{what}: rank {rank}: {end.said}", "keep the methods and arguments of the stub")
    return found


def _verdict(attempt: Any, found: list[Any]) -> bool:
    try:
        return bool(attempt().judge(found))
    except NotImplementedError:
        raise Mistake("there is nothing to check yet: write the methods of the class first") from None
    except Exception as error:
        shown = [end.how for end in found]
        hint = (
            "judge gets a list of ends: `value` is None where a rank has not returned, and `said` is a text"
        )
        raise Mistake(f"judge raised {type(error).__name__}: {error}, for the ends {shown}", hint) from error


def _colours(attempt: Any, caught: list[Any], alone: list[Any], right: list[Any], say: Say) -> None:
    """The judge: green for the fault with its defence, red for all else."""
    if not _verdict(attempt, caught):
        raise Mistake(
            f"fault + defence: the judge says red, for {_said(caught)}",
            "this is what the test expects: green",
        )
    say("fault + defence: green")
    for what, found in (("fault alone", alone), ("right program", right)):
        if _verdict(attempt, found):
            raise Mistake(
                f"{what}: the judge says green, for {_said(found)}",
                "a test that is green without its defence, or without its fault, tests nothing",
            )
        say(f"{what}: red")
    for what, found, hint in _NO_PASS:
        if _verdict(attempt, found):
            raise Mistake(f"{what}: the judge says green", hint)
    half = [caught[0], End("returned", value=[0.0])]
    if caught[1].how == "raised" and _verdict(attempt, half):
        raise Mistake("only rank 0 raises: the judge says green", "every rank has to raise: look at all ends")
    say("a wait, another error, a crash: red")


def _said(found: list[Any]) -> str:
    return "; ".join(f"rank {r} {e.how}: {str(e.said or e.value)[:90]}" for r, e in enumerate(found))


# --- digest ---

X = (1.0, 2.0, 3.0, float("nan"))


def _served(job: Any, make: Attempt, fault: Any, defended: bool, dtype: Any = torch.float32) -> Any:
    test, x = make(), torch.tensor(X, dtype=dtype)
    dist.broadcast(x, 0)
    if fault:
        x = test.fault(x, job.rank) if fault is True else fault(x, job.rank)
    if defended:
        test.defence(x)
    x = x.clone()
    dist.all_reduce(x)
    return x[:3].tolist()


def _last(rank: int) -> bool:
    return rank == dist.get_world_size() - 1


def _swaps(x: Any, rank: int) -> Any:
    return x[[1, 0, 2, 3]] if _last(rank) else x


def _a_little(x: Any, rank: int) -> Any:
    x = x + torch.tensor([0.5, 0.0, 0.0, 0.0])  # so that a text of x rounds the 3e-7 away
    return x + torch.tensor([0.0, 0.0, 3e-7, 0.0]) if rank == 0 else x


def _zero(x: Any, rank: int) -> Any:
    return x * torch.tensor([-1.0 if _last(rank) else 1.0, 1, 1, 1])


def _no_nan(x: Any, rank: int) -> Any:
    return x.nan_to_num() if _last(rank) else x


def _another_nan(x: Any, rank: int) -> Any:
    bits = x.view(torch.int32) ^ torch.tensor([0, 0, 0, 1], dtype=torch.int32)
    return bits.view(x.dtype) if _last(rank) else x


_NAN = "compare bits: a NaN in place of a number is a difference, and so is another NaN"
_OTHERS = (
    (
        _swaps,
        "the last rank swaps two elements",
        "compare all elements in their order: a sum does not see a swap",
    ),
    (_a_little, "3e-7 on rank 0", "compare bits: a tolerance, or a text of x, lets a small difference pass"),
    (
        _zero,
        "another sign on the last rank",
        "compare all elements: an absolute value or a norm does not see a sign",
    ),
    (_no_nan, "0 for the NaN on the last rank", _NAN),
    (_another_nan, "another NaN on the last rank", _NAN),
)


@on_three_too
def judge_digest(attempt: Attempt, ranks: Ranks, say: Say) -> None:
    """Fault, defence and judge of an input that differs."""
    right = _run(ranks, "right program", _served, attempt, None, True)
    expected = _run(ranks, "right program", _served, attempt, None, False)
    if any(e.how != "returned" for e in right):
        raise Mistake(
            f"right program, with a NaN on every rank: {_said(right)}",
            "a right program has to pass: compare bits, for NaN is not equal to NaN",
        )
    if [e.value for e in right] != [e.value for e in expected]:
        raise Mistake(
            f"right program: {_said(right)}; without the defence {expected[0].value}",
            "the defence changes x, or what is computed from it: give collectives a copy",
        )
    say("right program, with a NaN: let through")
    alone = _run(ranks, "fault alone", _served, attempt, True, False, stall=STALL_S)
    if any(e.how != "returned" for e in alone) or alone[0].value == expected[0].value:
        raise Mistake(
            f"fault alone: {_said(alone)}; without the fault {expected[0].value}",
            "the fault has to change the result, silently: return another tensor on one rank, of the same shape",
        )
    say(f"fault alone: silent, {alone[0].value} in place of {expected[0].value}")
    caught = _run(ranks, "fault + defence", _served, attempt, True, True)
    others = {what: _run(ranks, what, _served, attempt, fault, True) for fault, what, _ in _OTHERS}
    for what, found in {"your fault": caught, **others}.items():
        if any(e.how == "waited" for e in found) or len({e.how for e in found}) > 1:
            raise Mistake(f"{what}: {_said(found)}", "every rank has to raise: compare all ranks with all")
        if any(e.how != "raised" for e in found):
            hint = {w: hint for _, w, hint in _OTHERS}.get(what, "the defence has to raise where x differs")
            raise Mistake(f"{what}: {_said(found)}", hint)
        say(f"{what}: raised on every rank")
    _colours(attempt, caught, alone, right, say)


# --- guards ---


def _warmed(job: Any, make: Attempt, fault: bool, defended: bool, lengths: tuple[int, ...]) -> Any:
    def program(x: Any) -> Any:
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD)

    test, run = make(), torch.compile(program, backend="eager", dynamic=False)
    served = [torch.ones(rows, 4) for rows in lengths]

    def serve() -> None:
        time.sleep(0.0 if fault else 0.3)  # a slow call compiles nothing
        for x in served * 2:
            run(x)

    with torch.no_grad():
        test.warm_up(run, served, fault)
        before = suite.compiled()
        test.defence(serve) if defended else serve()
    return {"compiled": suite.since(before)["graphs"]}


def judge_guards(attempt: Attempt, ranks: Ranks, say: Say) -> None:
    """Fault, defence and judge of a warmup that leaves something to compile."""
    for lengths in ((2, 3), (5, 1, 4)):
        right = _run(ranks, "right program", _warmed, attempt, False, True, lengths)
        finding = f"right program, shapes of {lengths} rows: {_said(right)}"
        if any(e.how != "returned" for e in right):
            raise Mistake(
                finding,
                "without the fault, warm up with each tensor of `served`; and compare with what was compiled before",
            )
        if any(e.value["compiled"] for e in right):
            raise Mistake(finding, "without the fault, warm_up has to compile all that `served` needs")
    say("right program: let through")
    alone = _run(ranks, "fault alone", _warmed, attempt, True, False, (2, 3), stall=STALL_S)
    if any(e.how != "returned" or not e.value["compiled"] for e in alone):
        raise Mistake(
            f"fault alone: {_said(alone)}",
            "with the fault, something is left to compile: warm up with another shape, or with some of `served`",
        )
    say(f"fault alone: silent, {alone[0].value['compiled']} compiled after the warmup")
    caught = _run(ranks, "fault + defence", _warmed, attempt, True, True, (2, 3), stall=STALL_S)
    if any(e.how != "raised" for e in caught):
        raise Mistake(
            f"fault + defence: {_said(caught)}",
            "call serve() under torch.compiler.set_stance('fail_on_recompile'), or compare counters before and after",
        )
    _colours(attempt, caught, alone, right, say)


# --- preflight ---


class _Refuses:
    def __reduce__(self) -> Any:
        raise RuntimeError("this object is not to be pickled")


_MESSAGES: dict[str, Any] = {
    "a dict with a tensor": {"steps": 4, "x": torch.arange(4.0)},
    "None": None,
    "a lambda": {"f": lambda: 0},
    "an object that refuses": {"deep": [_Refuses()]},
}


def _sent(job: Any, make: Attempt, which: str | None, defended: bool) -> Any:
    """Rank 0 sends one message, and then the last one; the others return what they got."""
    test, refused = make(), ""
    if job.rank:
        got: list[Any] = []
        while (message := suite.receive()) != "end":
            got.append(message)
        return len(got)
    message = test.fault() if which is None else _MESSAGES[which]
    try:
        if defended:
            test.defence(message)
        suite.send(message, preflight=False)
    except NotImplementedError:
        suite.send("end", preflight=False)
        raise
    except Exception as error:
        if not defended:
            raise
        refused = f"{type(error).__name__}: {error}"
    suite.send("end", preflight=False)
    return refused


def judge_preflight(attempt: Attempt, ranks: Ranks, say: Say) -> None:
    """Fault, defence and judge of a message that cannot be sent."""
    right: list[Any] = []
    for which in list(_MESSAGES)[:2]:
        right = _run(ranks, which, _sent, attempt, which, True)
        if any(e.how != "returned" for e in right) or right[0].value or right[1].value != 1:
            raise Mistake(
                f"{which}: {_said(right)}", "a message that can be pickled has to pass, whatever it holds"
            )
        say(f"{which}: let through")
    alone = _run(ranks, "fault alone", _sent, attempt, None, False, stall=STALL_S)
    if alone[1].how != "waited":
        raise Mistake(
            f"fault alone: {_said(alone)}",
            "fault() returns a message that pickle.dumps refuses",
        )
    say("fault alone: rank 1 waits")
    caught = _run(ranks, "fault + defence", _sent, attempt, None, True, stall=STALL_S)
    others = {
        which: _run(ranks, which, _sent, attempt, which, True, stall=STALL_S) for which in list(_MESSAGES)[2:]
    }
    for what, found in {"your fault": caught, **others}.items():
        if any(e.how != "returned" for e in found) or not found[0].value or found[1].value:
            raise Mistake(
                f"{what}: {_said(found)}",
                "raise on rank 0 before anything is sent: pickle the whole message, and let every error out",
            )
        say(f"{what}: refused, and rank 1 gets the next message")
    _colours(attempt, caught, alone, right, say)
    for what, found in {
        "rank 0 has an error, and rank 1 got a message": [caught[0], End("returned", value=1)],
        "rank 0 has no error, and rank 1 got no message": [End("returned", value=""), caught[1]],
    }.items():
        if _verdict(attempt, found):
            raise Mistake(
                f"{what}: the judge says green", "look at `value` of each rank: the error, and the count"
            )
    say("one of the two alone: red")


# --- watchdog ---

WINDOW_S, BEAT_S = 0.4, 0.05
PATIENCE_S = 6 * WINDOW_S
LATE_S = 5 * WINDOW_S  # by when silence has to be noticed


class _Leader:
    """A leader's store. The leader goes on while this process stands still, as a process of its own does."""

    def __init__(self) -> None:
        self.kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.over = threading.Event()
        self.began = time.monotonic()
        self.become("works")

    def become(self, state: str) -> None:
        self.since, self.state = time.monotonic(), state

    def write(self) -> None:
        """Write what the leader has written by now; a step is longer than the window, and no fault."""
        for key, every, stands in (("heartbeat", BEAT_S, "silent"), ("step", 2 * WINDOW_S, "wedged")):
            until = self.since if self.state == stands else time.monotonic()
            self.kept.set(key, str(int((until - self.began) / every)))


class _Store:
    """A worker's connection to a leader's store, with the methods of TCPStore that a watchdog needs."""

    def __init__(self, leader: _Leader) -> None:
        self._leader = leader

    def clone(self) -> _Store:
        return _Store(self._leader)

    def set_timeout(self, timeout: timedelta) -> None:
        """Accept a timeout, which a stopped leader does not keep."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._leader.kept, name)

        def call(*args: Any) -> Any:
            if self._leader.state == "stopped":
                # no timeout of a TCPStore ends a call to a stopped server: after it the client waits for an answer
                self._leader.over.wait()
                raise SystemExit  # the check is over: ends the attempt's thread without a word
            self._leader.write()
            return method(*args)

        return call


# what the leader does; what it is called; when an alarm has to come, from and to, None for none; the hint otherwise
_LEADERS: dict[str, tuple[str, tuple[float, float] | None, str]] = {
    "works": (
        "works, with steps longer than the window", None,
        "it beats within each window, and its step changes within `patience`: note the time of each key's last change"),
    "silent": (
        "is alive and beats no more", (0.5 * WINDOW_S, LATE_S),
        "the key stays in the store when the leader falls silent: look whether `heartbeat` changes within `window`"),
    "wedged": (
        "is stuck in its step, and its thread beats", (0.5 * PATIENCE_S, PATIENCE_S + LATE_S),
        "a heartbeat says that the process lives: look whether `step` changes within `patience`, too"),
    "stopped": (
        "is stopped", (0.5 * WINDOW_S, LATE_S),
        "a stopped leader's store does not answer, and no timeout ends a call of it: let one thread ask and another "
        "watch the clock"),
    "still": (
        "works, and the worker stands still", None,
        "Python's lock was held for longer than `patience`, so your thread did not run, and the leader worked: after a "
        "pause of your own, read both keys again before an alarm, or leave that time out"),
}  # fmt: skip


def judge_watchdog(attempt: Attempt, ranks: Ranks, say: Say) -> None:
    """The attempt hears a leader that falls silent, in each way in which it can, and no leader that works."""
    hint = (
        "it is called as my_watchdog(store, window, patience, on_silence), starts a daemon thread and returns"
    )
    every: dict[str, Any] = {}
    for state, (what, due, mistake) in _LEADERS.items():
        if state not in every:  # "still" stops all threads of its process, so it comes after the others
            states = ["still"] if state == "still" else [other for other in _LEADERS if other != "still"]
            every |= on_ranks(ranks, _watch_all, attempt, states, only=0, hint=hint)[0]
        seen = every[state]
        if seen["blocked"]:
            raise Mistake(f"the leader {what}: my_watchdog does not return", hint)
        finding = f"the leader {what}: " + ("no alarm" if seen["alarm"] is None else "alarm")
        if (seen["alarm"] is not None) != (due is not None):
            raise Mistake(finding, mistake)
        if due and seen["alarm"] < due[0]:
            limit = (
                "`patience`: a step may take longer than a beat" if state == "wedged" else "a whole `window`"
            )
            raise Mistake(f"{finding} too early", f"wait until the key has been the same for {limit}")
        if seen["alarms"] > 1:
            raise Mistake(f"{finding}, {seen['alarms']} times", "call on_silence once")
        say(finding)


def _watch_all(attempt: Attempt, states: list[str]) -> dict[str, Any]:
    with ThreadPoolExecutor() as pool:
        seen = {state: pool.submit(_watch_in_time, attempt, state) for state in states}
    return {state: future.result() for state, future in seen.items()}


def _watch_in_time(attempt: Attempt, state: str) -> dict[str, Any]:
    """Watch, and watch again after an early alarm: on a busy machine the leader or who listens to it can be late."""
    due = _LEADERS[state][1]
    for _ in range(3):
        seen = _watch(attempt, state)
        if seen["alarm"] is None or (due and seen["alarm"] >= due[0]):
            break
    return seen


def _watch(attempt: Attempt, state: str) -> dict[str, Any]:
    leader = _Leader()
    alarms: list[float] = []
    returned = threading.Event()
    failed: list[BaseException] = []

    def start() -> None:
        try:
            attempt(_Store(leader), WINDOW_S, PATIENCE_S, lambda *why: alarms.append(time.monotonic()))
        except Exception as error:
            failed.append(error)
        returned.set()

    threading.Thread(target=start, daemon=True).start()
    blocked = not returned.wait(LATE_S)
    if failed:
        raise failed[0]
    due = _LEADERS[state][1]
    time.sleep(PATIENCE_S + 2 * WINDOW_S if state == "works" else 2 * WINDOW_S)
    leader.become(state)
    since = leader.since
    if state == "still":
        ctypes.PyDLL(None).usleep(int(1e6 * PATIENCE_S))  # keeps Python's lock, as a long call in C can
    while due and not alarms and time.monotonic() - since < due[1]:
        time.sleep(BEAT_S)
    time.sleep(WINDOW_S)  # a second alarm would come now
    seen = {"blocked": blocked, "alarm": alarms[0] - since if alarms else None, "alarms": len(alarms)}
    leader.become("stopped")
    leader.over.set()  # ends the attempt's threads
    return seen


# --- jobs ---

CAUSES = ("a call too few", "half a message", "limit too short", "leader wedged", "leader killed")
CHANGES = (
    "announce each call", "agree before a call is left out", "check the body before the header", "longer patience",
    "longer group timeout", "restart the leader", "warm up before the watchdog starts",
)  # fmt: skip
RIGHT = {
    "A": ({1}, "a call too few", "agree before a call is left out"),
    "B": ({1}, "limit too short", "longer patience"),
    "C": ({0}, "half a message", "check the body before the header"),
}
# B's limit is too short for a first compile: the worker waits longer, or the leader compiles before; the fault is the
# limit of rank 1, and rank 0 is where the other change is made
OTHER_B = [({rank}, "limit too short", "warm up before the watchdog starts") for rank in (0, 1)]
FORM = 'it returns a dict such as {"A": ([0], "leader wedged", "restart the leader"), ...}: ranks, cause and change'
_hint = hint_in_order(
    RIGHT,
    {
        "A": "who raises is not who is wrong: which sum is the first that cannot be right, and who left a batch out?",
        "B": "which rank ended by itself, and what did the other one do at that time?",
        "C": "who raises is not who is wrong: what did the other rank write before it?",
    },
    {
        "A": "count the all-reduces of each rank",
        "B": "read the stack of rank 0: does it wait, or does it compute?",
        "C": "how far did rank 1 get in receive(), and which call of rank 0 belongs to it?",
    },
    {
        "A": {
            "longer group timeout": "with more time the same wait takes longer",
            "announce each call": "rank 1 has heard of the batch, and leaves it out by itself",
        },
        "B": {
            "longer group timeout": "no collective has run into its limit",
            "restart the leader": "the leader works",
        },
        "C": {"longer group timeout": "with more time the same wait takes longer"},
    },
)


def judge_logs(attempt: Attempt, ranks: Ranks, say: Say) -> None:
    """Each job's ranks, cause and change."""

    def hint(job: str, *answer: Any) -> str:
        return "" if job == "B" and answer in OTHER_B else _hint(job, *answer)

    judge_jobs(attempt, ranks, say, hint, RIGHT, CAUSES, CHANGES, FORM)


def _test(name: str, title: str, minutes: int, defence: str, judge: Any) -> Exercise:
    targets = (defence, "green only for the fault with its defence")
    return Exercise(f"break_it.{name}", title, "medium", minutes, targets, judge, takes="class")


digest = _test(
    "digest",
    "an input that differs",
    10,
    "the defence raises on every rank for any difference of bits, and lets a right program through",
    judge_digest,
)
guards = _test(
    "guards",
    "a warmup with the wrong shapes",
    7,
    "the defence raises where a call compiles, and lets a right program through",
    judge_guards,
)
preflight = _test(
    "preflight", "a message that cannot be sent", 6,
    "the defence raises before anything is sent, and lets what can be pickled through", judge_preflight)  # fmt: skip
watchdog = Exercise(
    "break_it.watchdog",
    "a worker whose leader falls silent",
    "hard",
    12,
    (
        "no alarm while the leader works, also where the worker stands still",
        "one alarm when the leader's beats end, when its step stands still, and when its store does not answer",
    ),
    judge_watchdog,
)
jobs = Exercise(
    "break_it.jobs",
    "three jobs and their logs",
    "medium",
    7,
    ("for each job the rank on which the fault is, the cause, and the change",),
    judge_logs,
)
