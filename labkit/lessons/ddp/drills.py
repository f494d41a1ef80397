"""What goes wrong in data parallel training on one rank or in the model, how it ends, and what ends it well."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from labkit import torch_compat
from labkit.lessons.shared import training as data
from labkit.lessons.shared.options import chosen
from labkit.lessons.shared.training import TOLERANCE, loss_of
from labkit.lessons.shared.training_model import Model, Sizes
from labkit.ranks import RankError, Ranks, here
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance

__all__ = ["DRILLS", "run"]

STALL_S, PATIENT_S = 2.0, 60.0  # a drill is known to wait; its remedy may only be slow
TIMEOUT_S = 120.0
RIGHT, SILENT, RAISES, WAITS = "right", "silent and wrong", "raises", "waits, and is ended"


@dataclass(frozen=True)
class Drill:
    """Something that goes wrong: what, and what is done about it ('' where the error is the remedy)."""

    name: str
    what: str
    remedy: str


DRILLS = {
    d.name: d
    for d in (
        Drill("unused", "a parameter has no part in the loss, on every rank", "find_unused_parameters=True"),
        Drill("unused on one", "the last block is skipped on rank 1 only", "find_unused_parameters=True"),
        Drill(
            "smaller batch", "rank 1 has fewer images than the others", "weigh each rank's loss by its images"
        ),
        Drill("fewer batches", "rank 1 runs out of batches first", "torch.distributed.algorithms.Join"),
        Drill("hook", "a gradient hook raises on rank 1", ""),
        Drill("captured hook", "the same under compiled autograd", ""),
    )
}


def run(ranks: Ranks, only: Sequence[str] = (), *, talk: bool = False) -> Report:
    """Every drill as it is, and with its remedy; each ends by itself, or is ended and its ranks replaced.

    Table `drills`: drill, remedy ('-' without it), ended ('right': gradients are those of one process; 'silent and
    wrong'; 'raises'; 'waits, and is ended'), said (the error's first line, or how far gradients are apart), stall_s
    (seconds after which ranks that all wait for each other are ended), seconds.
    Raises ValueError for a drill that does not exist, before anything runs.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     list(run(ranks, ["smaller batch"]).frame["ended"])
    ['silent and wrong', 'right']
    """
    names = chosen(only, DRILLS, "drill")
    if ranks.world_size < 2:
        raise ValueError(f"a drill needs at least 2 ranks, and these are {ranks.world_size}")
    images, labels = data.digits()
    rows = []
    for name in names:
        for remedy in (False, True) if DRILLS[name].remedy else (False,):
            rows.append(_attempt(ranks, name, remedy, images[:64], labels[:64]))
            if talk:
                print(f"{rows[-1]['ended']}: {name}{', with its remedy' * remedy}", flush=True)
    return _report(rows, ranks)


def _attempt(ranks: Ranks, name: str, remedy: bool, images: Any, labels: Any) -> dict[str, Any]:
    began = time.perf_counter()
    # of a hook that raises the other rank is known to wait: it has this long to end by itself
    stall = STALL_S if not remedy and name in ("unused on one", "fewer batches") else PATIENT_S
    try:
        found = ranks.run(_play, name, remedy, images, labels, timeout=TIMEOUT_S, stall=stall)
    except RankError as error:
        first = error.outcomes[0]
        raised = f"rank {first.rank}: {first.type}: {first.message}"
        ended, text = (WAITS, error.headline) if error.hung else (RAISES, raised)
        text, detail = text.splitlines()[0], str(error)
    else:
        apart = max(found)
        ended, detail = (RIGHT if apart <= TOLERANCE else SILENT), ""
        text = f"gradients apart by {apart:.2g} of the largest"
    row = {"drill": name, "remedy": DRILLS[name].remedy if remedy else "-", "ended": ended, "said": text}
    return {**row, "stall_s": stall, "seconds": time.perf_counter() - began, "all": detail}


# --- on a rank ---


def _play(name: str, remedy: bool, images: Any, labels: Any) -> float:
    """Play one drill; returns how far gradients are from those of one process, relative to the largest of each."""
    torch_compat.dynamo_reset()
    with quiet_stderr(), torch_compat.quiet_dynamo():
        return BODIES[name](remedy, *data.on_device(images, labels))


def _apart(model: Any, reference: Any) -> float:
    pairs = zip(model.module.parameters(), reference.parameters(), strict=True)
    return max(
        float((a.grad - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs if b.grad is not None
    )


def _made(
    remedy: bool = False, skips: Callable[[], bool] = lambda: False, extra: bool = False, blocks: int = 2
) -> Any:
    """A model under DDP. skips: whether its last block is left out now; extra: a parameter that nothing uses."""

    class Skipping(Model):
        def forward(self, x: Any) -> Any:
            x = self.first(x)
            for block in self.blocks[: len(self.blocks) - skips()]:
                x = block(x)
            return self.head(x)

    model = Skipping(Sizes(blocks=blocks)).to(here().device)
    if extra:
        model.extra = nn.Parameter(torch.zeros(3, device=here().device))
    return DistributedDataParallel(model, find_unused_parameters=remedy)


def _plain(images: Any, labels: Any) -> Any:
    plain = Model(Sizes()).to(images.device)
    loss_of(plain(images), labels).backward()
    return plain


def _unused(remedy: bool, images: Any, labels: Any) -> float:
    model = _made(remedy, extra=True)
    run = torch.compile(model, backend="aot_eager")
    x, y = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in (images, labels))
    for _ in range(2):  # the first step ends; the second finds that it was not finished
        model.zero_grad()
        loss_of(run(x), y).backward()
    plain = _plain(images, labels)
    plain.extra = torch.nn.Parameter(torch.zeros(3))
    return _apart(model, plain)


def _unused_on_one(remedy: bool, images: Any, labels: Any) -> float:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = _made(remedy, skips=lambda: rank == 1)
    xs, ys = images.chunk(size), labels.chunk(size)
    for _ in range(2):
        model.zero_grad()
        loss_of(model(xs[rank]), ys[rank]).backward()
    # the same in one process: the last block sees what the other ranks sent through it
    plain = Model(Sizes()).to(images.device)
    for i in range(size):
        blocks, x = plain.blocks[: len(plain.blocks) - (i == 1)], plain.first(xs[i])
        for block in blocks:
            x = block(x)
        (loss_of(plain.head(x), ys[i]) / size).backward()
    return _apart(model, plain)


def _smaller(remedy: bool, images: Any, labels: Any) -> float:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = _made()
    each = len(images) // size
    mine = slice(rank * each, (rank + 1) * each - (each * 3 // 4 if rank == 1 else 0))
    x, y = images[mine], labels[mine]
    total = each * size - each * 3 // 4
    weight = len(x) * size / total if remedy else 1.0
    (loss_of(model(x), y) * weight).backward()
    keep = [i for i in range(each * size) if not each * 2 - each * 3 // 4 <= i < each * 2]
    return _apart(model, _plain(images[keep], labels[keep]))


def _fewer(remedy: bool, images: Any, labels: Any) -> float:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = _made()
    x, y = images.chunk(size)[rank], labels.chunk(size)[rank]

    def train(steps: int) -> None:
        for _ in range(steps):
            model.zero_grad()
            loss_of(model(x), y).backward()

    steps = 1 if rank == 1 else 2
    if not remedy:
        train(steps)
        return _apart(model, _plain(images, labels))
    with Join([model]):
        train(steps)
    dist.barrier()
    if rank == 1:
        return 0.0  # its last gradients are those of a step that others did without it
    there = [i for i in range(size) if i != 1]
    left = [(images.chunk(size)[i], labels.chunk(size)[i]) for i in there]
    plain = _plain(torch.cat([a for a, _ in left]), torch.cat([b for _, b in left]))
    for (
        parameter
    ) in plain.parameters():  # Join divides by all ranks by default, those that have ended included
        parameter.grad *= len(there) / size
    return _apart(model, plain)


def _hook(remedy: bool, images: Any, labels: Any, captured: bool = False) -> float:
    mode = "python_reducer" if captured else "ddp_optimizer"
    with torch_compat.ddp_mode(mode):
        model = _made(blocks=1)
        run = torch.compile(model, backend="eager")

        def check(g: Any) -> None:
            if dist.get_rank() == 1:
                raise FloatingPointError("the gradient of blocks.0.up is not finite")

        model.module.blocks[0].up.weight.register_hook(check)
        x, y = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in (images, labels))
        loss = loss_of(run(x), y)
        if captured:
            with torch_compat.compiled_autograd(torch.compile(backend="eager")):
                loss.backward()
        else:
            loss.backward()
    return float("nan")  # not reached: rank 1 raises, and rank 0 waits for it


BODIES: dict[str, Callable[[bool, Any, Any], float]] = {
    "unused": _unused,
    "unused on one": _unused_on_one,
    "smaller batch": _smaller,
    "fewer batches": _fewer,
    "hook": _hook,
    "captured hook": partial(_hook, captured=True),
}


# --- in the kernel ---


def _report(rows: list[dict[str, Any]], ranks: Ranks) -> Report:
    table = pd.DataFrame(rows)
    made = provenance(backend=ranks.backend, device=ranks.device)
    tables = {
        "drills": table.drop(columns="all").round({"seconds": 1}),
        "said": table[["drill", "remedy", "all"]],
    }
    return Report("training_drills", "What goes wrong, and how it ends", ranks.label, tables, [], made, [])
