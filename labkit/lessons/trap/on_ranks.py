"""What runs in each rank for the eager trap: the model in three forms, single calls, the ladder, a profile."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from labkit import torch_compat
from labkit.lessons.shared.memory import allocated
from labkit.lessons.trap import calls, device
from labkit.lessons.trap.calls import AGAIN, ASYNC, FORMS, FUNCTIONAL, IN_PLACE
from labkit.ranks import here
from labkit.timing import interleave, laps
from labkit.trace import Profile

SMALL = 64 * 1024  # bytes up to which one call is too short to be timed alone
REPEATS = 5  # calls a sample of a small one
LOOP = 40  # calls a sample of a layer: long enough to be interrupted as a model's forward is
LARGE = 1 << 20  # bytes above which rounds are fewer, and waiting for async_op=True is left out
FEW = 8  # rounds of a large one: fewer give an interval without ends
WAITED = "functional, waited for"
STEPS = {
    "in place": "dist.all_reduce",
    "bare operator": "+ allocation, copy, wait",
    "wrapper": "+ Python wrapper, AsyncCollectiveTensor",
    "registered": "+ autograd registration",
    "used": "+ first use of the result, dispatched in Python",
    "recorded": "+ a gradient recorded",
}
_OPERATION = re.compile(r"(?!profiler::|autograd::|torch::)\w+::[\w.]+")
PROFILED = 12  # profiled calls, of which the median is taken


def measure(
    program: Any,
    config: Any,
    collectives: Sequence[str],
    sizes: Sequence[int],
    rounds: int,
    reduces: Mapping[str, Callable[..., Any]],
    patience: float,
    count: bool = True,
    talk: bool = False,
) -> dict[str, Any]:
    """Run on every rank: samples in seconds, counts of operations and allocations, and a profile, all plain data.

    A size whose rounds would take longer than `patience` seconds is left out, on all ranks alike, and listed in
    `left_out`. count: the model's operations, which are the same over every link. Without communication nothing is left
    out, because ranks that do not talk cannot agree.
    """
    me = here()
    where = torch.device(me.device)
    found: dict[str, Any] = {"laps": {}, "work": [], "device": [], "left_out": []}

    def say(what: str) -> None:
        if talk and me.rank == 0:
            print(what, flush=True)

    with torch.no_grad():
        found["model"] = _model(program, config, reduces, rounds, where, count)
        say(f"{me.backend}: the model, {config.collectives} collectives a forward")
        for collective in collectives:
            for nbytes in sizes:
                dist.barrier()
                made = calls.forms(collective, nbytes, where)
                few = min(rounds, FEW) if nbytes > LARGE else rounds
                seconds = few * _pilot(made, where) if nbytes > LARGE else 0.0
                if seconds > patience and me.backend != "fake":
                    found["left_out"].append((collective, nbytes, seconds))
                    continue
                found["laps"][collective, nbytes] = _laps(made, nbytes, few)
                found["work"] += [
                    {"collective": collective, "bytes": nbytes, "form": form, **_work(_whole(*made[form]))}
                    for form in (IN_PLACE, FUNCTIONAL)
                ]
                if where.type == "cuda":
                    found["device"] += device.measure(collective, nbytes, made, rounds, me.backend)
            say(f"{me.backend}: {collective}, {len(sizes)} sizes")
        found["breakdown"] = [
            {"collective": collective, "form": form, **row}
            for collective in collectives
            for form in (IN_PLACE, FUNCTIONAL)
            for row in _profiled(_whole(*calls.forms(collective, 4096, where)[form]))
        ]
    found["ladder"] = _ladder(rounds, where)
    return found


def _whole(start: Callable[[], Any], finish: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: finish(start())


def _timed(nbytes: int) -> tuple[str, ...]:
    return tuple(form for form in FORMS if nbytes <= LARGE or form != ASYNC)


def _pilot(made: Mapping[str, Any], where: Any) -> float:
    """Seconds that one round takes on the slowest rank, the first one, which warms up as well."""
    began = time.perf_counter()
    for form in _timed(LARGE + 1):
        _whole(*made[form])()
    took = torch.tensor(time.perf_counter() - began, device=where)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


def _laps(made: Mapping[str, Any], nbytes: int, rounds: int) -> dict[str, tuple[Any, Any]]:
    repeats, warmup = (REPEATS, 2) if nbytes <= SMALL else (1, 2 * (nbytes <= LARGE))
    taken = laps({form: made[form] for form in _timed(nbytes)}, rounds, warmup, repeats, dist.barrier)
    return {form: (lap.returned.samples, lap.done.samples) for form, lap in taken.items()}


def _work(call: Callable[[], Any]) -> dict[str, int]:
    """Operations, functional ones among them, pieces of memory and bytes of one call: counted, not timed."""
    names = operations(call)
    memory = allocated(call)
    return {
        "operations": len(names),
        "functional": sum(name.startswith("_c10d_functional") for name in names),
        "allocations": memory.pieces,
        "allocated_bytes": memory.bytes,
    }


def operations(call: Callable[[], Any]) -> list[str]:
    """What `labkit.contract.dispatched` counts, in order: for a model's forward, in a tenth of its time."""
    profile = Profile()
    profile.start()
    with profile.mark("call"):
        call()
    found = [event for event in profile.stop() if event.stream < 0 and not event.is_async]
    whole = next(event for event in found if event.name == "call")
    ran: list[str] = []
    above: list[Any] = []
    for event in sorted(found, key=lambda e: (e.start, -e.end)):
        if event.thread != whole.thread or not whole.start <= event.start < whole.end:
            continue
        while above and above[-1].end <= event.start:
            above.pop()
        inside = any(kind(e.name) == "collective" for e in above)  # what one does there is the backend's own
        twice = bool(above) and above[-1].name == event.name  # the profiler's tree counts these once
        if (
            not inside
            and not twice
            and (kind(event.name) == "collective" or _OPERATION.fullmatch(event.name))
        ):
            ran.append(event.name)
        above.append(event)
    return ran


# --- the model ---


def _model(
    program: Any,
    config: Any,
    reduces: Mapping[str, Callable[..., Any]],
    rounds: int,
    where: Any,
    count: bool,
) -> dict[str, Any]:
    me = here()
    x = config.sample(device=where)
    whole = program.full(config)
    expected = whole(config.sample()).to(where)
    forwards: dict[str, Callable[[], Any]] = {}
    found: dict[str, Any] = {"work": {}, "error": {}}
    for form, reduce in reduces.items():
        model = program.shard(whole, me.rank, me.world_size, reduce).to(where)

        def forward(model: Any = model) -> Any:
            y = model(x)
            # the last result may still be under way: an element makes it arrive
            y[0, 0, 0].item() if where.type == "cpu" else torch.cuda.synchronize()
            return y

        error = float((forward() - expected).abs().max())
        # without communication the sums are missing, and so is any meaning of the numbers
        found["error"][form] = error if me.backend != "fake" else None
        forwards[form] = forward
        if count:
            found["work"][form] = _work(forward)
        if form == IN_PLACE:
            forwards[AGAIN] = forward
    taken = interleave(forwards, rounds, 1, dist.barrier)
    found["samples"] = {form: measurement.samples for form, measurement in taken.items()}
    return found


# --- where the time of one call goes ---


def waited(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """A functional all-reduce that waits for its result at once, so that no asynchronous tensor is left to be used."""

    def reduce_and_wait(x: Any) -> Any:
        y = reduce(x)
        return y.wait() if hasattr(y, "wait") else y

    return reduce_and_wait


def layers(where: Any) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """A small all-reduce and an addition to its result, each form with one cost more than the one before.

    By step: the mode to call it in, and the call. The addition is the same in all of them. In `used` and `recorded` it
    gets the asynchronous tensor itself, as a program's next operation does: its `__torch_dispatch__` is called, in
    Python, which waits, unwraps and calls the addition again.
    """
    x = torch.zeros(16, 128, device=where)
    tracked = torch.zeros(16, 128, device=where, requires_grad=True)
    world: Any = dist.group.WORLD
    name = torch_compat.world_name()
    reduce, wait = torch_compat.functional_op("all_reduce"), torch_compat.functional_op("wait_tensor")
    funcol = torch_compat.funcol

    def in_place() -> Any:
        dist.all_reduce(x)
        return x + 1

    # inference mode takes the autograd keys off the dispatcher's way, and what is registered there with them
    return {
        "in place": (torch.inference_mode, in_place),
        "bare operator": (torch.inference_mode, lambda: wait(reduce(x, "sum", name)) + 1),
        "wrapper": (torch.inference_mode, lambda: funcol.all_reduce(x, "sum", world).wait() + 1),
        "registered": (torch.no_grad, lambda: funcol.all_reduce(x, "sum", world).wait() + 1),
        "used": (torch.no_grad, lambda: funcol.all_reduce(x, "sum", world) + 1),
        "recorded": (torch.enable_grad, lambda: funcol.all_reduce(tracked, "sum", world) + 1),
    }


def _ladder(rounds: int, where: Any) -> dict[str, tuple[float, ...]]:
    """Seconds a call of each layer of a small all-reduce, in interleaved rounds."""

    def repeated(mode: Callable[[], Any], piece: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            with mode():
                for _ in range(LOOP):
                    piece()
                if where.type == "cuda":
                    torch.cuda.synchronize()

        return run

    runs = {step: repeated(*how) for step, how in layers(where).items()}
    runs[AGAIN] = runs["in place"]
    taken = interleave(runs, max(rounds, 20), 3, dist.barrier)
    return {step: tuple(s / LOOP for s in found.samples) for step, found in taken.items()}


def _profiled(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """Each operation's own time in one call, in us: the median of several profiled ones; what is left is Python's."""
    for _ in range(3):
        call()
    profile = Profile()
    profile.start()
    for _ in range(PROFILED):
        with profile.mark("call"):
            call()
    ranges = [event for event in profile.stop() if event.stream < 0 and not event.is_async]
    marks = sorted((e for e in ranges if e.name == "call"), key=lambda e: e.start)
    each = [own_times([e for e in ranges if m.start <= e.start and e.end <= m.end]) for m in marks]
    names = dict.fromkeys(name for times in each for name in times)
    return [
        {"operation": name, "kind": kind(name), "us": median(times.get(name, 0.0) for times in each)}
        for name in names
    ]


def own_times(ranges: Sequence[Any]) -> dict[str, float]:
    """Microseconds that each name has for itself, its inner ranges taken off; within a collective none is told apart.

    >>> from labkit.trace import RawEvent
    >>> nested = [RawEvent("call", 0, 9000, 1), RawEvent("aten::clone", 1000, 5000, 1)]
    >>> own_times([*nested, RawEvent("aten::copy_", 2000, 3000, 1)])
    {'call': 5.0, 'aten::clone': 3.0, 'aten::copy_': 1.0}
    """
    found: dict[str, float] = {}
    above: list[Any] = []
    for event in sorted(ranges, key=lambda e: (e.start, -e.end)):
        while above and above[-1].end <= event.start:
            above.pop()
        if any(kind(e.name) == "collective" for e in above):
            continue
        length = (event.end - event.start) / 1000
        found[event.name] = found.get(event.name, 0.0) + length
        if above:
            found[above[-1].name] -= length
        above.append(event)
    return found


def kind(name: str) -> str:
    """What an operation of a collective's call is there for.

    >>> [kind(name) for name in ("aten::empty", "aten::clone", "_c10d_functional::wait_tensor", "c10d::allreduce_")]
    ['allocation', 'copy', 'wait', 'collective']
    >>> kind("_c10d_functional::_wrap_tensor_autograd"), kind("_c10d_functional::all_reduce"), kind("call")
    ('wrapping', 'operator', 'python')
    """
    space, _, op = name.partition("::")
    if name == "call":
        return "python"
    if space == "c10d" or (not op and ":" in name):
        return "collective"
    if op == "wait_tensor":
        return "wait"
    if op.startswith("_wrap"):
        return "wrapping"
    if space == "_c10d_functional":
        return "operator"
    if op.startswith(("empty", "new_empty")):
        return "allocation"
    return "copy" if op in ("clone", "copy_", "contiguous") else "other"
