"""What runs in each rank for the eager trap: the model in its forms, and single calls over sizes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from course.shared.memory import allocated
from course.trap import calls, device
from course.trap.calls import AGAIN, ASYNC, FORMS, FUNCTIONAL, IN_PLACE
from labkit.ranks import here
from labkit.timing import interleave, laps
from labkit.trace import Profile

SMALL = 64 * 1024  # bytes up to which one call is too short to be timed alone
REPEATS = 5  # calls a sample of a small one
LARGE = 1 << 20  # bytes above which rounds are fewer, and waiting for async_op=True is left out
FEW = 8  # rounds of a large one: fewer give an interval without ends
_OPERATION = re.compile(r"(?!profiler::|autograd::|torch::)\w+::[\w.]+")
_COLLECTIVE = re.compile(r"c10d::\w+|[a-z]+:\w+")  # or a range such as shm:all_reduce


def measure(
    program: Any,
    config: Any,
    collectives: Sequence[str],
    sizes: Sequence[int],
    rounds: int,
    reduces: Mapping[str, Callable[..., Any]],
    rungs: Mapping[str, Callable[..., Any]],
    patience: float,
    count: bool = True,
    talk: bool = False,
) -> dict[str, Any]:
    """Run on every rank: samples in seconds, counts of operations and allocations, all plain data.

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
        found["model"] = _model(program, config, reduces, rungs, rounds, where, count)
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
        inside = any(_COLLECTIVE.fullmatch(e.name) for e in above)  # what one does there is the backend's own
        twice = bool(above) and above[-1].name == event.name  # the profiler's tree counts these once
        if (
            not inside
            and not twice
            and (_COLLECTIVE.fullmatch(event.name) or _OPERATION.fullmatch(event.name))
        ):
            ran.append(event.name)
        above.append(event)
    return ran


# --- the model ---


def _model(
    program: Any,
    config: Any,
    reduces: Mapping[str, Callable[..., Any]],
    rungs: Mapping[str, Callable[..., Any]],
    rounds: int,
    where: Any,
    count: bool,
) -> dict[str, Any]:
    me = here()
    x = config.sample(device=where)
    whole = program.full(config)
    expected = whole(config.sample()).to(where)
    forwards: dict[str, Callable[[], Any]] = {}
    found: dict[str, Any] = {"work": {}, "error": {}, "forms": list(reduces)}
    for form, reduce in {**reduces, **rungs}.items():
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
        if count and form in reduces:
            found["work"][form] = _work(forward)
        if form == IN_PLACE:
            forwards[AGAIN] = forward
    taken = interleave(forwards, rounds, 1, dist.barrier)
    found["samples"] = {form: measurement.samples for form, measurement in taken.items()}
    return found
