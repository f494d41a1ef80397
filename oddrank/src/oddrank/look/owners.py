"""Whose a graph break is: the program's, or torch's own, by where its code stands."""

from __future__ import annotations

import re

from oddrank.look.breaks import Break

__all__ = ["OWNERS", "library_of", "owner_of"]

NOTHING = "nothing to do"
# part of torch's own code -> whose it is, and what to do about breaks that torch itself has there
OWNERS = {
    "torch/nn/parallel/": ("DDP", NOTHING),
    "torch/distributed/fsdp/": ("FSDP2", "compile the blocks instead of the whole model"),
    "torch/optim/": ("the optimizer", NOTHING),
    "torch/distributed/pipelining/": ("the pipeline", "compile the stages' modules"),
    "torch/utils/checkpoint": ("activation checkpointing", NOTHING),
}
# what only calls further: the module's call machinery, and Dynamo's own stand-ins
_PASSED = ("torch/_dynamo/", "torch/_compile", "torch/nn/modules/module.py", "torch/utils/_contextlib.py")
_CONTEXT = re.compile(r"Developer debug context: module: (torch[\w.]*),")


def owner_of(met: Break) -> str:
    """Return whose break it is, by where its code stands: a name of `OWNERS`; '' where the program can do something."""
    inner = [place for place in met.libraries if "/" in place and not place.startswith((*_PASSED, "python/"))]
    stands = inner[-1] if inner else ""
    if not stands and (
        at := _CONTEXT.search(met.report)
    ):  # the program's own line calls what torch does not trace
        stands = at[1].replace(".", "/") + "/"
    return next((owner for part, (owner, _) in OWNERS.items() if stands.startswith(part)), "")


def library_of(met: Break) -> str:
    """Return the innermost line in a library where torch stopped, one outside of torch before its own."""
    inner = [place for place in met.libraries if not place.startswith((*_PASSED, "oddrank/", "labkit/"))]
    outside = [place for place in inner if not place.startswith("torch/")]
    return (outside or inner or [""])[-1]
