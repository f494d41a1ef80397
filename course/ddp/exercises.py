"""Lesson 13: DDP written twice with hooks, the cuts of a compiled model, and the logs of four jobs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from course.shared.jobs import judge_jobs
from labkit import files, lessons, torch_compat
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too

__all__ = ["JOBS", "buckets", "cuts", "jobs", "one_by_one"]

JOBS = files.ours("data/captured/ddp_jobs.log")
# bytes; three buckets for the weights of the model below, and others if they are filled in the order of arrival
CAP = 35_000
TOLERANCE = 1e-5  # float32, of the largest gradient of a weight; summed in another order: 4e-7
HELD_S, LATE_S = 3.0, 0.05  # a future that is not waited for is done so long after backward
HOOKS = (
    "it is called as {}, registers hooks on the parameters that require a gradient, and returns a function that is "
    "called after backward"
)


class _Model(torch.nn.Module):
    """(batch, 64) -> (batch, 10). One weight is frozen, and two stand in another order than that of their use."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((64, 32), (32, 256), (256, 32), (32, 32), (128, 64), (32, 128), (64, 10))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*size, bias=False) for size in sizes)
        self.layers[3].weight.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        for i in (0, 1, 2, 3, 5, 4, 6):
            x = self.layers[i](x.relu() if i else x)
        return x


@on_three_too
def judge_one_by_one(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Gradients reduced one by one from hooks: numbers, messages, when they start, and that each is waited for."""
    seen = on_ranks(ranks, _steps, attempt, hint=HOOKS.format("my_one_by_one(model)"), timeout=60)
    _judge_overlap(seen, HOOKS.format("my_one_by_one(model)"))
    row = seen[0]
    weights, arrived = row["weights"], [call["arrived"] for call in row["calls"]]
    if len(arrived) != weights:
        raise Mistake(
            f"{len(arrived)} all-reduces a step for {weights} weights",
            "one all-reduce for each weight, from the hook of that weight",
        )
    if sorted(arrived) != list(range(1, weights + 1)):
        late = weights - len(set(arrived))
        raise Mistake(
            f"{late} of {weights} all-reduces do not start in the hook of their gradient, but in a later one",
            "each hook starts the all-reduce of its own gradient, and of no other",
        )
    say(_overlapped(row))


@on_three_too
def judge_buckets(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Gradients reduced in buckets: as before, with as few messages as the size of a bucket allows."""
    hint = HOOKS.format("my_buckets(model, cap)")
    seen = on_ranks(ranks, _steps, attempt, CAP, hint=hint, timeout=60)
    row = seen[0]
    large = [call["bytes"] for call in row["calls"] if call["bytes"] >= CAP + row["largest"]]
    if large:
        raise Mistake(
            f"one message has {large[0]:,} bytes, and a bucket is full with {CAP:,}",
            "begin a new bucket as soon as the last one has reached its size",
        )
    _judge_overlap(seen, hint)
    meant = row["buckets"]
    if len(row["calls"]) == row["weights"]:
        raise Mistake(
            f"{len(row['calls'])} messages a step where {len(meant)} buckets of {CAP:,} bytes are enough",
            "put gradients together into one flat tensor, in the order of backward: the last layer first",
        )
    sent = [call["bytes"] for call in row["calls"]]
    if sent != [size for _, size in meant]:
        raise Mistake(
            f"messages of {', '.join(f'{size:,}' for size in sent)} bytes, and full buckets in the reverse order of "
            f"model.parameters() have {', '.join(f'{size:,}' for _, size in meant)}",
            "go through reversed(list(model.parameters())), and begin the next bucket when the last one has reached "
            "its size, not before",
        )
    for call, (arrived, size) in zip(row["calls"], meant, strict=True):
        if call["arrived"] != arrived:
            raise Mistake(
                f"the message of {size:,} bytes starts in hook number {call['arrived']} of backward, and its last "
                f"gradient is complete in number {arrived}",
                "count the gradients of each bucket, and let the hook that makes the count full start the message",
            )
    say(_overlapped(row))


def _judge_overlap(seen: Any, hint: str) -> None:
    for rank, row in enumerate(seen):
        if row["kind"]:
            raise Mistake(f"it returns {row['kind']}", hint)
        if not row["calls"]:
            raise Mistake(
                f"rank {rank}: dist.all_reduce is not called", "each hook starts one, or the last of a bucket"
            )
        after = [call for call in row["calls"] if call["after"]]
        if after:
            many = (
                "every all-reduce starts"
                if len(after) == len(row["calls"])
                else f"{len(after)} of them start"
            )
            raise Mistake(
                f"rank {rank}: {len(row['calls'])} all-reduces, {many} after backward",
                "start it in the hook: register_post_accumulate_grad_hook calls it as soon as the gradient is complete",
            )
        held = [call for call in row["calls"] if call["waited"] == "inside"]
        if held:
            raise Mistake(
                f"rank {rank}: {len(held)} of {len(row['calls'])} all-reduces are waited for inside of backward",
                "async_op=True returns a handle at once: keep it, and wait in the function that is called afterwards",
            )
        lost = [call for call in row["calls"] if not call["waited"]]
        if lost:
            raise Mistake(
                f"rank {rank}: {len(lost)} of {len(row['calls'])} all-reduces are never waited for",
                "an all-reduce may still be under way when the optimizer reads the gradient: wait for every handle",
            )
        for step, (apart, ratio) in enumerate(row["apart"], 1):
            if apart <= TOLERANCE:
                continue
            finding = (
                f"rank {rank}, step {step}: gradients are {apart:.0%} of the largest away from those of DDP"
            )
            if abs(ratio - len(seen)) < 1e-3:
                raise Mistake(
                    finding, "an all-reduce adds up, and DDP averages: divide by the number of ranks, once"
                )
            if step > 1:
                raise Mistake(
                    finding,
                    "the first step is right: what a step has counted or kept has to begin anew in the next, and "
                    "nothing may change a gradient while its message is under way",
                )
            raise Mistake(
                finding, "each gradient is reduced once, and what was reduced ends up in .grad again"
            )


def _overlapped(row: dict[str, Any]) -> str:
    before = sum(call["done"] < row["products"] for call in row["calls"])
    return (
        f"{len(row['calls'])} all-reduces a step, {before} of them started before backward's last matrix product; "
        "gradients are those of DDP in two steps"
    )


def _apart(got: Tensor, expected: Tensor) -> float:
    """How far a gradient is off, as a share of its largest element; infinite where it has a NaN."""
    apart = float((got - expected).abs().max() / expected.abs().max())
    return math.inf if math.isnan(apart) else apart


def _steps(attempt: Attempt, *more: Any) -> dict[str, Any]:
    """Two steps of the attempt beside torch's DDP, with every all-reduce noted."""
    program = lessons.program("ddp")
    rank = dist.get_rank()
    model, right = program.seeded(_Model), DistributedDataParallel(program.seeded(_Model))
    arrived: list[Any] = []
    weights = [p for p in model.parameters() if p.requires_grad]
    for p in weights:
        p.register_post_accumulate_grad_hook(arrived.append)  # before the attempt's hook of the same weight
    finish = attempt(model, *more)
    if not callable(finish):
        return {"kind": type(finish).__name__}
    found: dict[str, Any] = {"kind": "", "apart": [], "weights": len(weights)}
    found["largest"] = max(p.nbytes for p in weights)
    for step in range(2):
        seeded = torch.Generator().manual_seed(10 * step + rank)
        x, y = torch.randn(8, 64, generator=seeded), torch.arange(8)
        for each in (model, right):
            each.zero_grad()
        F.cross_entropy(right(x), y).backward()
        expected = {n: p.grad for n, p in right.module.named_parameters() if p.grad is not None}
        products = program.Matmuls()
        calls: list[dict[str, Any]] = []
        ended = threading.Event()
        arrived.clear()

        # below dist.all_reduce, so that it counts under whatever name it is called
        kind: Any = type(dist.group.WORLD)
        with mock.patch.object(kind, "allreduce", _noted(kind.allreduce, calls, products, arrived, ended)):
            loss = F.cross_entropy(model(x), y)
            with products:
                loss.backward()
            ended.set()
            finish()
        for call in calls:
            if (future := call.pop("future")) is not None and not call["waited"] and future.done():
                call["waited"] = "after"
        dist.barrier()
        got = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        worst = [_apart(got[n], g) if n in got else math.inf for n, g in expected.items()]
        ratios = [float((got[n] * g).sum() / (g * g).sum()) for n, g in expected.items() if n in got]
        found["apart"].append((max(worst), min(ratios, default=0.0)))
        found.setdefault("calls", calls)
        found["products"] = products.done
    place = {p: i for i, p in enumerate(arrived, 1)}
    meant = [(max(place[p] for p in bucket), sum(p.nbytes for p in bucket)) for bucket in _full(weights)]
    return found | {"buckets": sorted(meant)}


def _noted(
    real: Any, calls: list[dict[str, Any]], products: Any, arrived: list[Any], ended: threading.Event
) -> Callable[..., _Work]:
    """An all-reduce that notes its bytes, how many products and gradients there are, and when it is waited for."""

    def noted(group: Any, tensors: Any, *a: Any, **more: Any) -> _Work:
        call = {"bytes": sum(t.nbytes for t in tensors), "done": products.done, "arrived": len(arrived)}
        calls.append(call | {"after": ended.is_set(), "waited": "", "future": None})
        return _Work(real(group, tensors, *a, **more), calls[-1], ended)

    return noted


def _full(weights: list[Any], cap: int = CAP) -> list[list[Any]]:
    """The weights in the reverse order, in buckets that have reached their size."""
    buckets: list[list[Any]] = []
    for p in reversed(weights):
        if not buckets or sum(q.nbytes for q in buckets[-1]) >= cap:
            buckets.append([])
        buckets[-1].append(p)
    return buckets


class _Work:
    """The handle of an all-reduce, which notes when it is waited for, also by its future."""

    def __init__(self, work: Any, call: dict[str, Any], ended: threading.Event) -> None:
        self._work, self._call, self._ended = work, call, ended

    def _note(self) -> None:
        self._call["waited"] = self._call["waited"] or ("after" if self._ended.is_set() else "inside")

    def wait(self, *rest: Any) -> Any:
        self._note()
        return self._work.wait(*rest)

    def is_completed(self) -> bool:
        done = self.get_future().done()
        if done:
            self._note()
        return done

    def get_future(self) -> Any:
        if self._call["future"] is None:
            self._call["future"] = torch.futures.Future()
            threading.Thread(target=self._complete, daemon=True).start()
        return self._call["future"]

    def _complete(self) -> None:
        # late, so that a future that is done is one that was waited for
        if self._ended.wait(HELD_S):
            time.sleep(LATE_S)
        else:
            self._note()
        self._call["future"].set_result(self._work.get_future().wait())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


CUTS = "it is called as my_cuts(layers, buckets, compiled), and returns a function of x"
# hidden sizes of blocks of width 16: a weight has hidden x 64 bytes. By cap: buckets end within blocks, and two in one
HIDDEN, CAPS = (32, 64, 16, 48, 32), (1500, 5000, 100_000)


class _Part(torch.nn.Module):
    """A compiled part that notes, each time it runs, which layers it has."""

    def __init__(self, layers: Any, places: list[int], ran: list[list[int]]) -> None:
        super().__init__()
        self.run = torch.compile(torch.nn.Sequential(*layers), backend="aot_eager")
        self.places, self.ran = places, ran

    def forward(self, x: Any) -> Any:
        self.ran.append(self.places)
        return self.run(x)


def judge_cuts(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The parts that a model is compiled in: numbers of eager, a cut where a bucket is complete, and no other cut."""
    for cap in CAPS:
        found = on_ranks(ranks, _cut, attempt, cap, only=0, hint=CUTS, timeout=90)[0]
        if found["kind"]:
            raise Mistake(f"it returns {found['kind']}", CUTS)
        starts, right, buckets = found["starts"], found["right"], found["buckets"]
        case = f"{buckets} bucket{'s' * (buckets > 1)}, {len(HIDDEN) + 2} layers"
        if not found["called"]:
            raise Mistake(
                f"{case}: `compiled` is not called", "compiled(part) compiles a list of layers as one graph"
            )
        if found["ran"] != list(range(len(HIDDEN) + 2)):
            raise Mistake(
                f"{case}: the compiled parts that ran have the layers {found['ran']}",
                "the function that is returned runs compiled parts, each once, and together they have all layers in "
                "their order",
            )
        if found["apart"] > TOLERANCE:
            raise Mistake(
                f"{case}: the output or a gradient is not that of the layers one after the other",
                "each layer is in one part, in the order of the layers, and each part takes the output of the last",
            )
        if late := sorted(right - starts):
            raise Mistake(
                f"{case}: a bucket is complete with the backward of layer {late[0]}, and no graph ends there",
                "backward goes from the last layer to the first: the graph that contains a bucket's last gradient has "
                "to begin, in forward, with the layer of that weight",
            )
        if more := sorted(starts - right):
            raise Mistake(
                f"{case}: there is a cut before layer {more[0]}, where no bucket is complete",
                "a cut serves a bucket whose last gradient is complete; any other only costs a graph",
            )
        say(f"{case}: {len(starts)} graph{'s' * (len(starts) > 1)}, output and gradients of eager")


def _cut(attempt: Attempt, cap: int) -> dict[str, Any]:
    program = lessons.program("ddp")
    torch_compat.dynamo_reset()
    blocks = [program.seeded(partial(program.Block, 16, hidden)) for hidden in HIDDEN]
    layers = [*blocks[:2], torch.nn.ReLU(), *blocks[2:], torch.nn.Linear(16, 4, bias=False)]
    layers[3].up.weight.requires_grad_(False)
    weights = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    buckets = _full(weights, cap)
    called: list[int] = []
    ran: list[list[int]] = []
    places = {id(layer): i for i, layer in enumerate(layers)}

    def compiled(part: Any) -> Any:
        part = [part] if isinstance(part, torch.nn.Module) and id(part) in places else list(part)
        called.append(len(part))
        return _Part(part, [places[id(layer)] for layer in part], ran)

    forward = attempt(layers, buckets, compiled)
    if not callable(forward):
        return {"kind": type(forward).__name__}
    x, seen = torch.linspace(-1, 1, 128).view(8, 16), []
    for run in (forward, torch.nn.Sequential(*layers)):
        for p in weights:
            p.grad = None
        y = run(x)
        y.square().mean().backward()
        seen.append([y.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad for p in weights)])
    order = [i for part in ran for i in part]
    whole = order == list(range(len(layers)))  # else its output may have another shape
    pairs = zip(*seen, strict=True)
    apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs) if whole else math.inf
    place = {id(p): i for i, layer in enumerate(layers) for p in layer.parameters()}
    starts = {min(part) for part in ran if part}
    right = {0, *(min(place[id(p)] for p in bucket) for bucket in buckets)}
    found = {"kind": "", "starts": starts, "right": right, "buckets": len(buckets), "apart": apart}
    return found | {"called": len(called), "ran": order}


CAUSES = ("one bucket", "one graph", "late rank", "not compiled", "fixed cost of each message")
CHANGES = (
    "bucket_cap_mb=1",
    "bucket_cap_mb=25",
    'optimize_ddp="ddp_optimizer"',
    "load its input earlier",
    "compile inside",
)
RIGHT = {
    "A": ({0, 1}, "one bucket", "bucket_cap_mb=1"),
    "B": ({1}, "late rank", "load its input earlier"),
    "C": ({0, 1}, "not compiled", "compile inside"),
    "D": ({0, 1}, "fixed cost of each message", "bucket_cap_mb=25"),
}
FORM = (
    'it returns a dict such as {"A": ([0, 1], "late rank", "compile inside"), ...}: ranks, cause and change'
)
LOOK = {
    "A": "compare the number of graphs with the number of messages, and a message's begin with the end of backward",
    "B": "a message runs from the latest rank's entry: when does each rank begin its backward?",
    "C": "compare all lines of one rank with those of job A, also those before the times",
    "D": "messages of what sizes are there, and how long does each take from the end of the one before?",
}


def judge_logs(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each job's ranks, cause and change."""
    judge_jobs(attempt, ranks, say, _hint, RIGHT, CAUSES, CHANGES, FORM)


def _hint(job: str, on: set[int], cause: str, change: str) -> str:
    if cause != RIGHT[job][1]:
        return LOOK[job]
    if on != RIGHT[job][0]:
        return "right cause: on which ranks would you change something?"
    return "" if change == RIGHT[job][2] else "right cause, and a change that does not touch it"


one_by_one = Exercise(
    "ddp.one_by_one",
    "DDP with an all-reduce for each gradient",
    "medium",
    10,
    (
        "gradients are those of torch's DDP, also in the second step",
        "each all-reduce starts in the hook of its gradient",
        "every one is waited for after backward",
    ),
    judge_one_by_one,
)
buckets = Exercise(
    "ddp.buckets",
    "DDP with buckets",
    "hard",
    20,
    (
        "gradients are those of torch's DDP, also in the second step",
        "one message for each bucket, which starts when its last gradient is complete",
        "every one is waited for after backward",
    ),
    judge_buckets,
)
cuts = Exercise(
    "ddp.cuts",
    "where to cut the graph",
    "medium",
    10,
    (
        "output and gradients of eager",
        "where the last gradient of a bucket is complete, a graph of the backward ends",
        "no other cut",
    ),
    judge_cuts,
)
jobs = Exercise(
    "ddp.jobs",
    "four jobs and their logs",
    "medium",
    8,
    ("for each job the ranks on which something has to change, the cause, and the change",),
    judge_logs,
)
