"""Compiled autograd: backward graphs with it and without, which hooks break it, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pandas as pd
import torch

from labkit import torch_compat
from labkit.graphs import record
from labkit.lessons.shared import training as data
from labkit.lessons.shared.capture import Capture
from labkit.lessons.shared.harness import settled
from labkit.lessons.shared.options import chosen
from labkit.lessons.shared.training import loss_of
from labkit.lessons.shared.training_model import Model, Sizes
from labkit.lessons.shared.variants import with_own_code
from labkit.ranks import Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance
from labkit.timing import Measurement, check_rounds, compare

__all__ = ["AOT", "CAPTURED", "CHANGES", "HOOKS", "count", "run"]

AOT, CAPTURED = "AOTAutograd", "compiled autograd"
# what is hung on the first block; a scaling hook halves a gradient
HOOKS = (
    "none",
    "tensor hook that scales",
    "post-accumulate hook that scales",
    "tensor hook that appends to a list",
    "tensor hook that prints",
    "tensor hook that reads a number",
    "tensor hook hidden from the compiler",
    "full backward hook of a module",
)
CHANGES = ("the same again", "half the batch", "gradients not set to None", "a frozen weight")


def run(ranks: Ranks, hooks: Sequence[str] = HOOKS, *, rounds: int = 20) -> Report:
    """On rank 0 alone: hooks, costs and recompiles of compiled autograd, with graphs run as they are.

    Args:
        ranks: started ranks, of which rank 0 is used.
        hooks: names out of `HOOKS`.
        rounds: how often each backward pass is timed, in turn.

    Returns:
        Tables: `hooks` (graphs of backward, breaks, and whether gradients are eager's, both ways), `changes` (what was
        compiled again for a change between two steps, and the seconds of that step), `samples` (seconds of the backward
        pass), `first` (seconds of the first one).

    Raises:
        ValueError: a hook does not exist; nothing has run then.
        RankError: the rank fails.

    >>> from labkit.lessons.ddp import backward
    >>> backward.run(None, ["shouts"])
    Traceback (most recent call last):
    ValueError: unknown hook 'shouts': there is none, tensor hook that scales, ...
    """
    hooks = chosen(hooks, HOOKS, "hook")
    check_rounds(rounds)
    images, labels = data.digits()
    found = ranks.run(_measure, hooks, images[:64], labels[:64], rounds, ranks=0, timeout=300)[0]
    return _report(
        found, ranks.label, provenance(backend=ranks.backend, device=ranks.device, threads=ranks.threads)
    )


def count(model: Any, inputs: Any, labels: Any, backend: Any = None) -> dict[str, int]:
    """On a rank: graphs of one compiled step of a model, forward and backward, by AOTAutograd and captured whole.

    >>> import torch
    >>> counted = count(torch.nn.Linear(4, 3), torch.ones(2, 4), torch.zeros(2, dtype=torch.long))
    >>> counted["forward"], counted["backward by AOTAutograd"], counted["backward by compiled autograd"]
    (1, 1, 1)
    """
    found = {}
    for how in (AOT, CAPTURED):
        torch_compat.dynamo_reset()
        model.zero_grad()
        seen, whole = Capture(aot=True), Capture()
        loss = loss_of(torch.compile(model, backend=seen)(inputs), labels)
        with _capture(how, torch.compile(backend=whole)):
            loss.backward()
        found["forward"] = len(seen.forward)
        found[f"backward by {how}"] = len(seen.backward if how == AOT else whole.dynamo)
    torch_compat.dynamo_reset()
    return found


def _capture(how: str, compiler: Any) -> Any:
    return torch_compat.compiled_autograd(compiler) if how == CAPTURED else nullcontext()


# --- on a rank ---


def _hang(model: Any, hook: str, seen: list[Any]) -> Any:
    """Hang a hook on the model's first block."""
    block = model.blocks[0]
    weight = block.up.weight

    def scale(g: Any) -> Any:
        return g * 0.5

    def after(p: Any) -> None:
        p.grad.mul_(0.5)

    def append(g: Any) -> None:
        seen.append(tuple(g.shape))

    def shout(g: Any) -> None:
        print(end="")

    def clip(g: Any) -> Any:
        return g * min(1.0, 1e-3 / float(g.norm()))

    def whole(module: Any, inputs: Any, outputs: Any) -> Any:
        return tuple(g * 0.5 for g in inputs)

    if hook == HOOKS[2]:
        weight.register_post_accumulate_grad_hook(after)
    elif hook == HOOKS[7]:
        block.register_full_backward_hook(whole)
    elif hook != HOOKS[0]:
        by = dict(
            zip(HOOKS[1:7], (scale, None, append, shout, clip, torch.compiler.disable(scale)), strict=True)
        )
        weight.register_hook(by[hook])
    return model


def _measure(hooks: list[str], images: Any, labels: Any, rounds: int) -> dict[str, Any]:
    images, labels = data.on_device(images, labels)

    def model() -> Any:
        return with_own_code(Model(Sizes(blocks=1))).to(images.device)

    with quiet_stderr(), torch_compat.quiet_dynamo():
        found = {
            "hooks": [_hooked(model, hook, how, images, labels) for hook in hooks for how in (AOT, CAPTURED)]
        }
        found |= _costs(model(), images, labels, rounds)
    torch_compat.dynamo_reset()
    return found


def _hooked(model: Callable[[], Any], hook: str, how: str, images: Any, labels: Any) -> dict[str, Any]:
    torch_compat.dynamo_reset()
    calls: list[Any] = []
    plain, ours = _hang(model(), hook, []), _hang(model(), hook, calls)
    torch.manual_seed(0)
    loss_of(plain(images), labels).backward()
    seen, whole = Capture(aot=True), Capture()
    compiled = torch.compile(ours, backend=seen)
    with record(operators=False) as rec:
        # a module's backward hooks are traced in the forward pass, and only where backward will be captured
        with _capture(how, torch.compile(backend=whole)):
            loss_of(compiled(images), labels).backward()
    pairs = zip(plain.parameters(), ours.parameters(), strict=True)
    return {
        "hook": hook,
        "backward by": how,
        "forward graphs": len(seen.forward),
        "backward graphs": len(seen.backward if how == AOT else whole.dynamo),
        # one place is a break of each frame that it is inlined into
        "breaks": int(rec.breaks["place"].nunique()),
        "right": all(torch.allclose(a.grad, b.grad, atol=1e-6) for a, b in pairs),
        "reason": str(rec.breaks["reason"].iloc[0]) if len(rec.breaks) else "",
    }


def _costs(model: Any, images: Any, labels: Any, rounds: int) -> dict[str, Any]:
    """Seconds of backward passes both ways in turn, and what a change between two steps compiles."""
    torch_compat.dynamo_reset()
    whole = Capture()
    forward, compiler = torch.compile(model, backend=Capture(aot=True)), torch.compile(backend=whole)

    def backward(how: str, batch: int = 64, clear: bool = True) -> float:
        if clear:
            model.zero_grad()
        loss = loss_of(forward(images[:batch]), labels[:batch])
        loss.item()  # a GPU is done with the forward
        began = time.perf_counter()
        with _capture(how, compiler):
            settled(loss.backward)()
        return time.perf_counter() - began

    first = {how: backward(how) for how in (AOT, CAPTURED)}
    for how in (AOT, CAPTURED):
        backward(how)
    samples: dict[str, list[float]] = {AOT: [], CAPTURED: []}
    for i in range(rounds):
        for how in (AOT, CAPTURED)[:: 1 if i % 2 else -1]:
            samples[how].append(backward(how))
    changes = []
    for what in CHANGES:
        before = len(whole.dynamo)
        if what == CHANGES[3]:
            model.blocks[0].up.weight.requires_grad_(False)
        size = 32 if what == CHANGES[1] else 64
        seconds = backward(CAPTURED, size, what != CHANGES[2])
        changes.append(
            {"change": what, "backward graphs compiled": len(whole.dynamo) - before, "seconds": seconds}
        )
    return {"first": first, "samples": samples, "changes": changes}


# --- in the kernel ---


def _report(found: dict[str, Any], label: str, settings: dict[str, Any]) -> Report:
    rows = [(how, i, s) for how, taken in found["samples"].items() for i, s in enumerate(taken)]
    samples = pd.DataFrame(rows, columns=["backward by", "round", "seconds"])
    measured = {how: Measurement(f"backward by {how}", tuple(s)) for how, s in found["samples"].items()}
    first = pd.DataFrame([{"backward by": how, "seconds": s} for how, s in found["first"].items()])
    tables = {
        "hooks": pd.DataFrame(found["hooks"]),
        "changes": pd.DataFrame(found["changes"]),
        "samples": samples,
        "first": first,
    }
    verdicts = [compare(measured[CAPTURED], measured[AOT])]
    return Report("training_backward", "Backward passes captured whole", label, tables, verdicts, settings, [],
                  "labkit.lessons.ddp.figures:figure")  # fmt: skip
