"""Exercise: an optimizer whose state is divided over the ranks, for a model that is whole on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too
from labkit.torch_compat import on_collective

__all__ = ["optimizer"]

STEPS, TOLERANCE = 3, 1e-5


@on_three_too
def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """What the optimizer gets on each rank, the weights after some steps, and the collectives of a step."""
    hint = (
        "it is called as my_optimizer(parameters, make) and returns an object with a method step(); a frozen parameter "
        "has no gradient"
    )
    seen = list(on_ranks(ranks, _train, attempt, hint=hint))
    for rank, found in enumerate(seen):
        if found["kind"]:
            raise Mistake(f"my_optimizer returns {found['kind']}", hint)
        numbers, own = found["numbers"], found["own"]
        parts = [-(-n // len(seen)) for n in numbers]  # without frozen numbers, or with them
        if own not in parts:
            raise Mistake(
                f"rank {rank}: the optimizer got {own} numbers; {numbers[0]} over {len(seen)} ranks: {parts[0]} each",
                "the state of the whole is what is to be saved: give `make` this rank's part only"
                if own >= numbers[0]
                else "pad the flat vector with zeros to a multiple of the ranks, and give `make` one part, once",
            )
    for rank, found in enumerate(seen):
        if not found["apart"] <= TOLERANCE:
            said = f"rank {rank}: after {STEPS} steps the weights are apart by {found['apart']:.1e}"
            if found["from sum"] <= TOLERANCE:
                raise Mistake(
                    said, "a reduce-scatter sums: one process has the mean over all images, so divide once"
                )
            if found["from own"] <= TOLERANCE or found["from one"] <= TOLERANCE:
                raise Mistake(said, "each rank followed its own gradients: reduce them before the update")
            if found["apart"] != found["apart"]:
                raise Mistake(said, "weights are no numbers any more: look for what is never filled")
            if found["ranks apart"]:
                raise Mistake(
                    said, "the ranks hold different weights: after the update every rank needs all parts"
                )
            raise Mistake(
                said, "the parts stand in the order of the ranks, in one flat vector of all parameters"
            )
    names = seen[0]["collectives"]
    found = f"collectives a step: {', '.join(names) or 'none'}"
    if len(names) != 2 or "reduce_scatter" not in names[0] or "gather" not in names[1]:
        raise Mistake(
            found,
            "right numbers, for more messages or bytes than needed: a rank needs only its part of the sum, which is "
            "one reduce-scatter of all gradients; then one all-gather",
        )
    own, numbers = seen[0]["own"], seen[0]["numbers"][0]
    say(f"state for {own} of {numbers} numbers; {found}; the weights of one process on all ranks")


def _model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))  # 39 numbers
    model[0].bias.requires_grad_(False)  # 4 of them
    return model


def _flat(model: nn.Module) -> Any:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _sgd(tensors: Any) -> Any:
    return torch.optim.SGD(tensors, lr=0.1, momentum=0.9)


def _train(attempt: Attempt) -> dict[str, Any]:
    """On a rank: some steps with gradients of this rank's own images, beside three models that one process trains."""
    rank, size = dist.get_rank(), dist.get_world_size()
    xs = torch.randn(STEPS, size, 6, 5, generator=torch.Generator().manual_seed(1))
    mine, handed = _model(), []

    def make(tensors: Any) -> Any:
        tensors = list(tensors)
        handed.append(sum(t.numel() for t in tensors))
        return _sgd(tensors)

    sharded = attempt(mine.parameters(), make)
    if not callable(getattr(sharded, "step", None)):
        return {"kind": "None" if sharded is None else f"a {type(sharded).__name__} without step()"}
    # one process: the mean over all ranks; and two that are near it
    ways = {
        "apart": (lambda losses: sum(losses) / size),
        "from sum": sum,
        "from own": (lambda losses: losses[rank]),
    }
    models = {name: _model() for name in ways}
    optimizers = {name: _sgd(model.parameters()) for name, model in models.items()}
    names: list[str] = []
    for step in range(STEPS):
        mine.zero_grad()
        mine(xs[step, rank]).square().mean().backward()
        names.clear()
        with on_collective(lambda name, _: names.append(name)):
            sharded.step()
        for name, total in ways.items():
            optimizers[name].zero_grad()
            total([models[name](x).square().mean() for x in xs[step]]).backward()
            optimizers[name].step()
        if not step:
            own = [torch.empty_like(_flat(mine)) for _ in range(size)]
            dist.all_gather(own, _flat(models["from own"]))
            one = torch.stack([(weights - _flat(mine)).abs() for weights in own]).amin(0).max()
    flat = _flat(mine)
    others = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(others, flat)
    numbers = sum(p.numel() for p in mine.parameters() if p.requires_grad), len(flat)
    found: dict[str, Any] = {"kind": "", "numbers": numbers, "own": sum(handed)}
    found |= {"collectives": list(names), "ranks apart": any(not torch.equal(o, flat) for o in others)}
    for name, model in models.items():
        found[name] = float((_flat(model) - flat).abs().max())
    # how far each number is, after a step, from that of the nearest rank's own training
    found["from one"] = float(one)
    return found


optimizer = Exercise(
    "fsdp.optimizer",
    "one part of the optimizer's state on each rank",
    "hard",
    25,
    (
        "after each step all ranks have the weights of one process",
        "each rank's optimizer gets an equal share of the numbers, padded where they do not divide",
        "one reduce-scatter and one all-gather a step",
    ),
    judge,
)
