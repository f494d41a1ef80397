"""Two stages of a model on two ranks, microbatches between them by send and recv, and who stands still meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

from labkit import torch_compat
from labkit.lessons.shared import training as data
from labkit.lessons.shared.capture import Capture
from labkit.lessons.shared.options import whole
from labkit.lessons.shared.streams import Timeline, overlap
from labkit.lessons.shared.streams.timeline import SPANS
from labkit.lessons.shared.training import TOLERANCE, loss_of
from labkit.lessons.shared.training_model import Model, Sizes
from labkit.lessons.shared.variants import with_own_code
from labkit.ranks import Ranks, here
from labkit.report import PerRank, Report, provenance
from labkit.timing import Measurement, check_rounds, compare

__all__ = ["bubble", "run", "timelines"]


def bubble(stages: int, microbatches: int) -> float:
    """The share of a step that a stage stands still in, where all stages take equally long (GPipe, arXiv 1811.06965).

    >>> bubble(2, 1), bubble(2, 4)
    (0.5, 0.2)
    """
    return (stages - 1) / (microbatches + stages - 1)


def run(
    ranks: Ranks,
    microbatches: Sequence[int] = (1, 2, 4, 8),
    *,
    batch: int = 256,
    width: int = 256,
    hidden: int = 1024,
    rounds: int = 8,
) -> Report:
    """A step through two stages, with the batch in so many microbatches; rank 0 has the first half of the blocks.

    Activations go with isend and irecv, gradients come back the same way; each stage is one graph (run as it is).
    Tables: `summary` (microbatches, ms a step, how long a rank stood still, the bubble that GPipe's formula
    gives, differences to one process), `samples` (seconds), `spans` (the step of middle length). Raises ValueError for
    what cannot be run, before anything runs, and RankError when a rank fails.

    >>> from labkit.lessons.ddp import pipeline
    >>> pipeline.run(None, [3], batch=256)
    Traceback (most recent call last):
    ValueError: 3 microbatches do not divide a batch of 256
    """
    for count in microbatches:
        whole(microbatches=count)
        if batch % count:
            raise ValueError(f"{count} microbatches do not divide a batch of {batch}")
    if not microbatches:
        raise ValueError("give at least one number of microbatches")
    check_rounds(rounds)
    sizes = Sizes(width, hidden, blocks=4)
    if ranks.world_size != 2:
        raise ValueError(f"two stages need 2 ranks, and there are {ranks.world_size}")
    if ranks.device != "cpu" and ranks.backend != "nccl":
        raise ValueError(
            f"gloo sends and receives tensors of the CPU only, and these ranks are on {ranks.device}:"
            " give it Ranks(2, device='cpu')"
        )
    images, labels = data.digits()
    arguments = (list(microbatches), images[:batch], labels[:batch], sizes, rounds)
    found = ranks.run(_measure, *arguments, timeout=300)
    made = {"backend": ranks.backend, "device": ranks.device, "threads": ranks.threads, "batch": batch}
    return _report(found, ranks.label, provenance(**made, **asdict(sizes)))


def timelines(report: Report) -> dict[str, Timeline]:
    """The step of middle length for every number of microbatches, on both ranks."""
    spans, found = report.tables["spans"], {}
    for count in dict.fromkeys(spans["microbatches"]):
        mine = spans[spans["microbatches"] == count][list(SPANS)].reset_index(drop=True)
        name = f"{count} microbatch{'es' * (count > 1)}"
        found[name] = Timeline(name, report.label, "ms", mine)
    return found


# --- on a rank ---


class _Stage:
    """One rank's half of the model, and the marks of what it did when."""

    def __init__(self, sizes: Any) -> None:
        self.rank, self.on_gpu = dist.get_rank(), here().device != "cpu"
        half = sizes.blocks // 2
        model: Any = with_own_code(Model(sizes)).to(here().device)
        blocks = list(model.blocks)
        parts = [model.first, *blocks[:half]] if self.rank == 0 else [*blocks[half:], model.head]
        self.names = {
            id(p): n
            for n, p in model.named_parameters()
            if any(p is q for part in parts for q in part.parameters())
        }
        self.model = nn.Sequential(*parts)
        self.seen = Capture(aot=True)
        self.run = torch.compile(self.model, backend=self.seen, fullgraph=True)
        self.width = sizes.width
        self.marks: list[tuple[str, str, str, float, float]] = []

    def step(self, images: Any, labels: Any, count: int) -> float:
        """Forward and backward of one batch; returns the loss on the last stage, 0 before it."""
        self.marks = []
        self.model.zero_grad()
        return (self._first if self.rank == 0 else self._last)(images.chunk(count), labels.chunk(count))

    def _first(self, images: Any, labels: Any) -> float:
        sent: Any = []
        outs: Any = []
        for i, x in enumerate(images):
            out = self._does(f"F{i + 1}", "compute", lambda x=x: self.run(x))
            outs.append(out)
            sent.append(self._does("send", "launch", lambda out=out: dist.isend(out.detach(), 1)))
        coming = [torch.empty_like(out) for out in outs]
        handles: Any = [dist.irecv(grad, 1) for grad in coming]
        for i, (out, grad, handle) in enumerate(zip(outs, coming, handles, strict=True)):
            self._does("waits", "synchronize", handle.wait)
            self._does(f"B{i + 1}", "compute", lambda out=out, grad=grad: out.backward(grad))
        for work in sent:
            work.wait()
        self._arrive()
        return 0.0

    def _last(self, images: Any, labels: Any) -> float:
        coming = [torch.empty(len(x), self.width, device=x.device) for x in images]
        handles: Any = [dist.irecv(x, 0) for x in coming]
        sent: Any = []
        losses: list[float] = []
        for i, (x, y, handle) in enumerate(zip(coming, labels, handles, strict=True)):
            self._does("waits", "synchronize", handle.wait)
            x.requires_grad_()
            loss = self._does(f"F{i + 1}", "compute", lambda x=x, y=y: loss_of(self.run(x), y) / len(images))
            self._does(f"B{i + 1}", "compute", loss.backward)
            sent.append(self._does("send", "launch", lambda x=x: dist.isend(x.grad, 0)))
            losses.append(float(loss.detach()))
        for work in sent:
            work.wait()
        self._arrive()
        return sum(losses)

    def _arrive(self) -> None:
        """Wait for what this stream of the GPU does, and not for messages on others."""
        if self.on_gpu:
            torch.cuda.current_stream().synchronize()

    def _does(self, name: str, kind: str, what: Any) -> Any:
        start = time.perf_counter()
        value = what()
        if kind != "launch":
            self._arrive()
        self.marks.append(("main", name, kind, start, time.perf_counter()))
        return value


def _measure(counts: list[int], images: Any, labels: Any, sizes: Any, rounds: int) -> dict[str, Any]:
    images, labels = data.on_device(images, labels)
    torch_compat.dynamo_reset()
    alone = Model(sizes).to(images.device)
    expected = loss_of(alone(images), labels)
    expected.backward()
    reference: dict[str, Any] = {n: p.grad for n, p in alone.named_parameters()}
    found: dict[str, Any] = {"samples": {}, "marks": {}, "apart": {}, "loss": {}}
    stages = {count: _Stage(sizes) for count in counts}
    for count, stage in stages.items():
        loss = stage.step(images, labels, count)
        found["loss"][count] = abs(loss - expected.item()) if stage.rank == 1 else 0.0
        pairs: Any = [(p.grad, reference[stage.names[id(p)]]) for p in stage.model.parameters()]
        found["apart"][count] = max(float((g - ref).abs().max() / ref.abs().max()) for g, ref in pairs)
        stage.step(images, labels, count)
    kept: dict[int, list[tuple[float, Any]]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count, stage in stages.items():
            dist.barrier()
            began = time.perf_counter()
            stage.step(images, labels, count)
            kept[count].append((time.perf_counter() - began, stage.marks))
    found["graphs"] = {count: [len(s.seen.forward), len(s.seen.backward)] for count, s in stages.items()}
    found["samples"] = {count: [seconds for seconds, _ in taken] for count, taken in kept.items()}
    found["marks"] = {count: [marks for _, marks in taken] for count, taken in kept.items()}
    torch_compat.dynamo_reset()
    return found


# --- in the kernel ---


def _report(found: PerRank[dict[str, Any]], label: str, made: dict[str, Any]) -> Report:
    rows, spans, samples, measured = [], [], [], {}
    for count in found[0]["samples"]:
        by = [one["samples"][count] for one in found]
        slow = [max(pair) for pair in zip(*by, strict=True)]
        measured[count] = Measurement(f"{count} microbatch{'es' * (count > 1)}", tuple(slow))
        middle = sorted(range(len(slow)), key=slow.__getitem__)[len(slow) // 2]
        still = [_still(found, count, i) for i in range(len(slow))]
        rows.append(
            {
                "microbatches": count,
                "ms a step": measured[count].median * 1e3,
                "stood still": sorted(still)[len(still) // 2],
                "formula": bubble(len(found), count),
                "graphs a stage": "+".join(map(str, found[0]["graphs"][count])),
                "loss apart": max(one["loss"][count] for one in found),
                "gradients apart": max(one["apart"][count] for one in found),
            }
        )
        zero = min(mark[3] for one in found for mark in one["marks"][count][middle])
        for rank, one in found.items():
            samples += [(count, rank, i, s) for i, s in enumerate(one["samples"][count])]
            for lane, name, kind, start, end in one["marks"][count][middle]:
                a, b = (start - zero) * 1e3, (end - zero) * 1e3
                spans.append((count, rank, lane, name, kind, a, a, b, -1, ""))
    table = pd.DataFrame(rows)
    tables = {
        "summary": table,
        "samples": pd.DataFrame(samples, columns=["microbatches", "rank", "round", "seconds"]),
        "spans": pd.DataFrame(spans, columns=["microbatches", *SPANS]),
    }
    counts = list(measured)
    verdicts = [compare(measured[c], measured[counts[0]]) for c in counts[1:]]
    right = bool((table["gradients apart"] <= TOLERANCE).all())
    notes = [
        f"loss and gradients are {'those' if right else 'NOT those'} of one process, within {TOLERANCE:.0e}"
    ]
    return Report("training_pipeline", "Two stages and their microbatches", label, tables, verdicts, made, notes,
                  "labkit.lessons.ddp.figures:figure")  # fmt: skip


def _still(found: PerRank[dict[str, Any]], count: int, i: int) -> float:
    """The share of a step, first start to last end on any rank, in which a rank did not compute: mean of the ranks."""
    marks = [one["marks"][count][i] for one in found]
    first = min(m[3] for each in marks for m in each)
    last = max(m[4] for each in marks for m in each)
    busy = [overlap.length((m[3], m[4]) for m in each if m[2] == "compute") for each in marks]
    return 1 - sum(busy) / (len(busy) * (last - first))
