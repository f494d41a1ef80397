"""Training one model on several ranks: the data, what a route is, and its losses and gradients beside one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course.shared.capture import Capture
from course.shared.memory import peak
from course.shared.options import whole as whole_numbers
from course.shared.variants import with_own_code
from labkit import torch_compat
from labkit.ranks import Ranks, here
from labkit.ranks.output import quiet_stderr
from labkit.records import record
from labkit.report import PerRank, Report
from labkit.trace.events import collective_op

__all__ = [
    "CLASSES",
    "HELD_OUT",
    "PIXELS",
    "TOLERANCE",
    "Graphs",
    "Route",
    "batch",
    "build_route",
    "compare",
    "differences",
    "digits",
    "loss_of",
    "on_device",
]

PIXELS, CLASSES = 64, 10  # images of 8 x 8 in 17 greys
HELD_OUT = 297  # images that are never trained on
# float32; of the largest gradient of the same parameter. Summed in another order: 4e-7 here, 70 % for what is wrong
TOLERANCE = 1e-5
RATE = 0.1
BATCH = 64  # images a step, over all ranks
MEMORY = ("parameters", "gradients", "Adam's moments", "peak of a step")


# --- the data ---


def digits() -> tuple[Any, Any]:
    """The 1,797 images as float32 (1797, 64) between 0 and 1, and their labels as int64 (1797,), in a fixed order.

    The first 1,500 are for training. It is the test set of the UCI collection "Optical Recognition of Handwritten
    Digits", which scikit-learn ships (sklearn.datasets.load_digits).

    >>> images, labels = digits()
    >>> images.shape, str(images.dtype), float(images.max()), sorted(set(labels.tolist())) == list(range(10))
    ((1797, 64), 'float32', 1.0, True)
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return (found.data[order] / 16).astype(np.float32), found.target[order].astype(np.int64)


def batch(step: int, size: int, images: int) -> list[int]:
    """Which images make up the global batch of a step: the same on all ranks, going round and round.

    >>> batch(1, 4, 6)
    [4, 5, 0, 1]
    """
    return [(step * size + i) % images for i in range(size)]


def on_device(*arrays: Any) -> list[Any]:
    """On a rank: arrays as tensors on the rank's device."""
    return [torch.from_numpy(array).to(here().device) for array in arrays]


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy, mean over the batch."""
    return nn.functional.cross_entropy(logits, labels)


# --- a route ---


@dataclass
class Route:
    """A way to train a model, built on a rank.

    It leaves in every parameter the gradient of the mean loss over the batch of all ranks.

    Args:
        model: holds the parameters; of its own pieces, where they are sharded.
        forward: what is called, compiled or not; the model itself where it is left out.
        after: run between backward and the optimizer.
        share: (this rank's part of the batch, how many parts); one part a rank where it is left out.
        scale: what the loss is multiplied with before backward.
        whole: makes of a parameter's name and own piece the whole tensor (a collective: every rank calls it).
        back: runs the backward of a loss; `loss.backward()` where it is left out.
    """

    model: nn.Module
    forward: Callable[[Tensor], Tensor] | None = None
    after: Callable[[], Any] = lambda: None
    share: tuple[int, int] | None = None
    scale: float = 1.0
    whole: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor
    back: Callable[[Tensor], Any] = Tensor.backward

    def __post_init__(self) -> None:
        if self.forward is None:  # a compiled module has no truth value: never `or`
            self.forward = self.model

    def backward(self, images: Tensor, labels: Tensor, phase: Callable[[], Any] = nullcontext) -> Tensor:
        """Forward and backward on this rank's part of a batch; returns its loss, detached.

        `phase()` is a context around each of the two.
        """
        index, count = self.share or (dist.get_rank(), dist.get_world_size())
        x, y = images.chunk(count)[index], labels.chunk(count)[index]
        with phase():
            loss = loss_of(self.forward(x), y)  # type: ignore[misc]
        with phase():
            self.back(loss * self.scale)
            self.after()
        return loss.detach()

    def gradients(self) -> dict[str, Tensor]:
        """The gradients, whole, by the names of the plain model."""
        named = [(plain_name(n), p) for n, p in self.model.named_parameters()]
        return {n: self.whole(n, p.grad) for n, p in named if p.grad is not None}

    def descend(self) -> None:
        """One step of gradient descent; a plain line serves DTensors, pieces and whole weights alike."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= RATE * parameter.grad  # type: ignore[operator, misc]


# on a rank: a plain model with code of its own, and the backend of torch.compile, make a route
Build = Callable[[Any, Any], Route]


def plain_name(name: str) -> str:
    """The plain model's name of a parameter, without what wrappers and parametrizations put around it.

    >>> plain_name("module.blocks.0.up.parametrizations.weight.original")
    'blocks.0.up.weight'
    """
    name = name.removeprefix("_orig_mod.").removeprefix("module.").replace("_orig_mod.", "")
    return name.replace("parametrizations.weight.original", "weight")


@contextmanager
def build_route(
    make: Callable[[], nn.Module], build: Build, backend: Any, fresh: bool = True
) -> Iterator[Route]:
    """Build a route on this rank from a new model; settings of DDP that the route changes are undone at the end.

    fresh: forget all compiles before, as routes share the code of DDP.
    """
    if fresh:
        torch_compat.dynamo_reset()
    with torch_compat.ddp_mode("ddp_optimizer"):
        yield build(with_own_code(make()).to(here().device), backend)


def differences(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """How far gradients are apart, as a share of the largest one of the same parameter; inf where one is missing."""
    return {
        name: float((got[name] - g).abs().max() / g.abs().max()) if name in got else float("inf")
        for name, g in expected.items()
    }


class Graphs(Capture):
    """A backend that keeps graphs, and counts apart those that compiled autograd captured in a backward pass."""

    def __init__(self) -> None:
        super().__init__(aot=True)
        self.captured = 0
        self._phases, self._inside = 0, False

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        if not (self._inside and self._phases % 2 == 0):
            return super().__call__(graph, inputs)
        self.captured += 1
        return graph.forward

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Forward and backward in turn, for `Route.backward`."""
        self._phases += 1
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    @property
    def counts(self) -> tuple[int, int]:
        """The number of graphs of the forward and of the backward."""
        return len(self.forward), self.captured or len(self.backward)


# --- every route beside one process ---


def compare(
    ranks: Ranks,
    make: Callable[[], nn.Module],
    routes: Mapping[str, Build],
    *,
    steps: int,
) -> Report:
    """Train the same model on the same batches by every route, and compare with one process after each step.

    Args:
        ranks: started ranks.
        make: makes the model, with the same weights whenever it is called.
        routes: by name, a function `build(model, backend) -> Route`, called on every rank. Graphs are AOTAutograd's,
            run as they are.
        steps: steps of gradient descent before gradients are compared.

    Returns:
        Tables: `routes` (differences of loss and gradients, the latter relative to the largest gradient of the same
        parameter; graphs; breaks, regions and collectives a step), `collectives` (kind by kind), `losses` (every step),
        `memory` (bytes by rank).

    Raises:
        ValueError: there is no route, or no step; nothing has run then.
        RankError: a rank fails.

    >>> def parallel(model, backend):
    ...     return Route(nn.parallel.DistributedDataParallel(model))
    >>> def make():
    ...     torch.manual_seed(0)
    ...     return nn.Linear(PIXELS, CLASSES)
    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     compare(ranks, make, {"DDP": parallel}, steps=2).frame[["route", "equal", "breaks"]]
      route  equal  breaks
    0   DDP   True       0
    """
    whole_numbers(steps=steps)
    if not routes:
        raise ValueError("nothing to compare: give at least one route")
    images, labels = digits()
    found: dict[str, PerRank[dict[str, Any]]] = {}
    for name, build in routes.items():
        found[name] = ranks.run(_compare, make, build, images, labels, steps, timeout=300)
    return _report(found, ranks.label)


def _compare(make: Any, build: Build, images: Any, labels: Any, steps: int) -> dict[str, Any]:
    """Train one route and the plain model beside it, then record one step and look at its memory."""
    images, labels = on_device(images, labels)
    seen = Graphs()
    alone = Route(make().to(images.device), share=(0, 1))
    losses: list[float] = []
    reference: list[float] = []
    # gloo and DDP's wrapper warn of what the report says
    with quiet_stderr(), torch_compat.quiet_dynamo(), build_route(make, build, seen) as route:
        began = time.perf_counter()
        for step in range(steps):
            index = batch(step, BATCH, len(images) - HELD_OUT)
            for trained, into in ((alone, reference), (route, losses)):
                if step:
                    trained.descend()
                trained.model.zero_grad()
                into.append(
                    float(
                        trained.backward(
                            images[index], labels[index], *((seen.phase,) if trained is route else ())
                        )
                    )
                )
            if not step:
                first = time.perf_counter() - began
        apart = differences(route.gradients(), alone.gradients())
        with record() as rec:
            with rec.forward():
                route.model.zero_grad()
                route.backward(images[index], labels[index])
        memory = _memory(route, lambda: route.backward(images[index], labels[index]))
    counts = rec.counts.iloc[0]
    return {
        "loss": losses,
        "reference": reference,
        "share": (route.share or (dist.get_rank(), 0))[0],
        "apart": apart,
        "first_s": first,
        "graphs": seen.counts,
        "regions": int(counts["regions"]),
        "breaks": int(counts["breaks"]),
        "skips": int(counts["skips"]),
        "collectives": _collectives(rec),
        "memory": memory,
    }


def local_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of tensors on this rank: of a DTensor its own piece, of a memory that several share once.

    >>> import torch
    >>> x = torch.ones(4)
    >>> local_bytes([x, x.view(2, 2), torch.ones(2)])
    24
    """
    found = {}
    for tensor in tensors:
        own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = own.untyped_storage()
        found[storage.data_ptr(), storage.nbytes()] = storage.nbytes()
    return sum(found.values())


def _collectives(rec: Any) -> dict[str, int]:
    names = rec.events.query("kind == 'collective' and forward >= 0")["name"]
    return names.map(collective_op).value_counts().to_dict()


def _memory(route: Any, step: Any) -> dict[str, int]:
    parameters = list(route.model.parameters())
    kept = local_bytes(parameters)
    gradients = local_bytes(p.grad for p in parameters if p.grad is not None)
    optimizer = torch.optim.Adam(parameters, foreach=False)
    optimizer.step()
    moments = local_bytes(t for state in optimizer.state.values() for t in state.values() if t.dim())
    route.model.zero_grad()
    return dict(zip(MEMORY, (kept, gradients, moments, peak(step)), strict=True))


# --- in the kernel ---


def _report(found: dict[str, PerRank[dict[str, Any]]], label: str) -> Report:
    rows, losses, kinds, memory = [], [], [], []
    for name, seen in found.items():
        first = seen[0]
        # ranks with the same part of the batch have the same loss: one of each counts
        parts = {one["share"]: one["loss"] for one in seen.values()}
        mean = [sum(values) / len(values) for values in zip(*parts.values(), strict=True)]
        off = max(abs(a - b) for a, b in zip(mean, first["reference"], strict=True))
        apart = max(max(one["apart"].values()) for one in seen.values())
        rows.append(
            {
                "route": name,
                "equal": off <= TOLERANCE * first["reference"][0] and apart <= TOLERANCE,
                "loss apart": off,
                "gradients apart": apart,
                "forward graphs": first["graphs"][0],
                "backward graphs": first["graphs"][1],
                "breaks": first["breaks"],
                "given up": first["skips"],
                "regions": first["regions"],
                "collectives": sum(first["collectives"].values()),
                "ranks": len(seen),
                "ranks alike": all(
                    (o["graphs"], o["breaks"]) == (first["graphs"], first["breaks"]) for o in seen.values()
                ),
                "first step, s": max(one["first_s"] for one in seen.values()),
            }
        )
        pairs = enumerate(zip(mean, first["reference"], strict=True))
        losses += [(name, i, value, ref) for i, (value, ref) in pairs]
        kinds += [(name, kind, count) for kind, count in first["collectives"].items()]
        for rank, one in seen.items():
            memory += [(name, rank, what, size) for what, size in one["memory"].items()]
    table = pd.DataFrame(rows)
    tables = {
        "routes": table,
        "collectives": pd.DataFrame(kinds, columns=["route", "collective", "a step"]),
        "losses": pd.DataFrame(losses, columns=["route", "step", "loss", "one process"]),
        "memory": pd.DataFrame(memory, columns=["route", "rank", "what", "bytes"]),
    }
    wrong = table.loc[~table["equal"], "route"].tolist()
    notes = [f"DIFFERENT from one process: {', '.join(wrong)}"] if wrong else []
    if label.startswith("gloo"):  # course.shared.memory says why
        notes.append("a peak over gloo is an upper bound: what gloo's threads free is not seen")
    return Report("training", "Routes to train on several ranks", label, tables, notes=notes)
