"""Lesson 14: a sharded weight whose gradient is right in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course.shared.capture import Capture, calls
from course.shared.variants import with_own_code
from labkit import torch_compat
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too

__all__ = ["gather"]

ROWS, COLUMNS = 6, 4


@on_three_too
def judge_gather(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The whole weight, its gradient on every rank, the graphs, and which collectives are in them."""
    hint = (
        "it is called as my_gather() and returns a module: the rank's rows go in, the whole weight comes out"
    )
    seen = list(on_ranks(ranks, _gather, attempt, hint=hint))
    for rank, found in enumerate(seen):
        if found.get("kind"):
            raise Mistake(f"my_gather() returns a {found['kind']}", hint)
        if found.get("broke"):
            raise Mistake(
                f"rank {rank}: {found['broke']}",
                "the graph has to hold it whole: use a functional collective, a tensor in and a tensor out",
            )
        if found["shape"] != [ROWS * len(seen), COLUMNS]:
            raise Mistake(
                f"rank {rank}: the weight has the shape {found['shape']}",
                "every rank has some rows of the weight: gather along dimension 0",
            )
        if not found["right"]:
            times = found["times"]
            raise Mistake(
                f"rank {rank}: the weight has other numbers",
                "the rows stand in the order of the ranks"
                if times != times
                else f"the numbers are {times:.3g} times the right ones: the weight keeps its values, and only its "
                "gradient is divided",
            )
    for rank, found in enumerate(seen):
        if found["gradient"] is None:
            raise Mistake(
                f"rank {rank}: the piece has no gradient",
                "autograd does not see through what writes into a tensor of yours: the functional form has a backward",
            )
        ratio = found["gradient"]
        finding = f"rank {rank}: the gradient is {ratio:.3g} times the mean over the ranks"
        if ratio != ratio or abs(ratio - 1) > 1e-4:
            if abs(ratio - len(seen)) < 1e-3:
                raise Mistake(
                    finding, "the reduce-scatter sums: divide once by the number of ranks, and nowhere else"
                )
            if abs(ratio * len(seen) - 1) < 1e-3:
                raise Mistake(finding, "it was divided twice by the number of ranks")
            raise Mistake(
                finding,
                "of the other ranks' batches it knows nothing: rows of one rank are used by all, so gradients are "
                "summed where the rows live",
            )
    names = seen[0]["forward"], seen[0]["backward"]
    found = f"forward: {', '.join(names[0]) or 'no collective'}; backward: {', '.join(names[1]) or 'no collective'}"
    if names != (["all_gather_into_tensor"], ["reduce_scatter_tensor"]):
        raise Mistake(
            found,
            "right numbers, for more bytes than needed: one all-gather, and its backward is one reduce-scatter",
        )
    say(f"one graph; {found}; gradients are the mean on {len(seen)} ranks")


def _gather(attempt: Attempt) -> dict[str, Any]:
    made = attempt()
    if not isinstance(made, nn.Module):
        return {"kind": type(made).__name__}
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.randn(ROWS * size, COLUMNS, generator=torch.Generator().manual_seed(0))
    xs = torch.randn(size, 5, COLUMNS, generator=torch.Generator().manual_seed(1))
    piece = whole.chunk(size)[rank].clone().requires_grad_()
    torch_compat.dynamo_reset()
    seen = Capture(aot=True)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gather = made

        def forward(self, piece: Any, x: Any) -> Any:
            weight = self.gather(piece)
            return weight, (x @ weight.T).square().mean() if weight.shape[-1] == COLUMNS else weight.sum()

    found: dict[str, Any] = {}
    try:
        with torch_compat.quiet_dynamo():
            weight, loss = torch.compile(with_own_code(Layer()), backend=seen, fullgraph=True)(
                piece, xs[rank]
            )
        if loss.requires_grad:
            loss.backward()
    except Exception as error:
        if type(error).__name__ != "Unsupported":
            raise
        return {"broke": str(error).splitlines()[0]}
    finally:
        torch_compat.dynamo_reset()
    found["shape"] = list(weight.shape)
    found["right"] = weight.shape == whole.shape and bool(torch.allclose(weight.detach(), whole))
    found["times"] = _ratio(weight.detach(), whole) if weight.shape == whole.shape else float("nan")
    right = whole.clone().requires_grad_()
    torch.stack([(x @ right.T).square().mean() for x in xs]).mean().backward()
    assert right.grad is not None
    mine = right.grad.chunk(size)[rank]
    found["gradient"] = None if piece.grad is None else _ratio(piece.grad, mine)
    found["forward"], found["backward"] = (_collectives(graphs) for graphs in (seen.forward, seen.backward))
    return found


def _ratio(got: Any, right: Any) -> float:
    """`got` over `right` where that is one number, else nan."""
    factor = float((got * right).sum() / (right * right).sum())
    close = float((got - factor * right).abs().max()) < 1e-5 * float(right.abs().max())
    return factor if close else float("nan")


def _collectives(graphs: list[Any]) -> list[str]:
    short = [name.partition("_c10d_functional.")[2] for graph in graphs for name in calls(graph)]
    return [name for name in short if name and name != "wait_tensor"]


gather = Exercise(
    "fsdp.gather",
    "a weight that is whole only where it is used",
    "medium",
    15,
    (
        "one graph under `fullgraph=True`",
        "each rank's rows make the whole weight, and their gradient is the mean over all ranks",
        "one all-gather forward, one reduce-scatter backward",
    ),
    judge_gather,
)
