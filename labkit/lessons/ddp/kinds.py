"""The names of the routes, what each divides, what it costs and when to take it; no torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.lessons.shared.options import chosen

__all__ = ["ALONE", "EVERY", "ROUTES", "Route", "choose"]

ALONE = "one process"


@dataclass(frozen=True)
class Route:
    """A way to train on several ranks.

    kind: how it is built (see `routes`). mode: of DDP, torch's `optimize_ddp`; of FSDP2 'block' or 'whole'; of tensor
    parallelism the all-reduce. captured: backward under compiled autograd. ranks: how many it needs.
    """

    name: str
    kind: str
    mode: str = ""
    compiled: bool = True
    captured: bool = False
    ranks: int = 2
    cost: str = ""
    take: str = ""


ROUTES: dict[str, Route] = {
    r.name: r
    for r in (
        Route(ALONE, "alone", compiled=False, ranks=1),
        Route(
            "DDP, eager", "ddp", compiled=False,
            cost="nothing is fused", take="to compare with",
        ),
        Route(
            "DDP, ddp_optimizer", "ddp", "ddp_optimizer",
            cost="a graph for each bucket, nothing fused across buckets", take="data parallel, by default",
        ),
        Route(
            "DDP, no_optimization", "ddp", "no_optimization",
            cost="every all-reduce after the backward graph", take="when communication is cheap beside a step",
        ),
        Route(
            "DDP, python_reducer", "ddp", "python_reducer",
            cost="a message for each parameter, each waited for", take="only with compiled autograd",
        ),
        Route(
            "DDP, python_reducer, compiled autograd", "ddp", "python_reducer", captured=True,
            cost="captures again when the backward pass changes", take="to have DDP's all-reduces in one graph",
        ),
        Route(
            "FSDP2, eager", "fsdp", compiled=False,
            cost="gathers every parameter, forward and backward", take="to compare with",
        ),
        Route(
            "FSDP2, block by block", "fsdp", "block",
            cost="hooks stay eager between compiled blocks", take="the model does not fit a rank: the DTensor road",
        ),
        Route(
            "FSDP2, whole", "fsdp", "whole",
            cost="the frame with the hooks is given up", take="not at all: compile the blocks",
        ),
        Route(
            "gathered weights", "gathered",
            cost="unscheduled as written: a wait after every gather", take="to let compiler passes schedule it",
        ),
        Route(
            "tensor parallel, functional", "tensor", "functional",
            cost="an all-reduce a block, forward and backward", take="layers too large for a rank: the explicit road",
        ),
        Route(
            "tensor parallel, DTensor", "dtensor",
            cost="dispatch in eager, a longer first compile", take="the same with placements instead of collectives",
        ),
        Route(
            "data x tensor parallel", "mesh", "functional", ranks=4,
            cost="both axes' collectives", take="more ranks than one axis can use",
        ),
    )
}  # fmt: skip
EVERY = tuple(name for name in ROUTES if name != ALONE)
TRAP = {
    "in place, eager": Route("in place, eager", "tensor", "inplace", compiled=False),
    "in place, compiled": Route("in place, compiled", "tensor", "inplace"),
}
ROUTES |= TRAP


def choose(names: Sequence[str]) -> list[Route]:
    """The routes with these names, or every one for an empty list.

    Raises ValueError for an unknown name.

    >>> [route.kind for route in choose(["DDP, eager", "FSDP2, whole"])]
    ['ddp', 'fsdp']
    """
    return [ROUTES[name] for name in chosen(names or EVERY, ROUTES, "route")]
