"""How a script runs on all ranks, where its runs are compared: compiled or not, with which settings."""

from __future__ import annotations

import importlib
import random
from dataclasses import dataclass

import torch

from oddrank import torch_names
from oddrank.look.agreement import FASTPATH, RANDOM

__all__ = ["Way", "apply"]


@dataclass(frozen=True)
class Way:
    """One way to run a script; on each rank random numbers begin with the same seed in each.

    Args:
        compiled: 'yes'; 'no' for `torch.compiler.set_stance("force_eager")`; 'captured' for graphs of Dynamo that run
            operator by operator, as with the backend 'eager', but with the random numbers of checkpoints.
        nudged: The relative change of parameters and inputs at the first step, at least their last bit; None for none.
        settings: `agreement.RANDOM` and `agreement.FASTPATH`, where they hold.
        again: The step whose regions run again after the last recorded one (`oddrank.look.replays`); 0 for none.
    """

    compiled: str = "yes"
    nudged: float | None = None
    settings: tuple[str, ...] = ()
    again: int = 0


def apply(way: Way, rank: int) -> None:
    """Let the way hold in this process, before the script begins.

    Args:
        way: What holds.
        rank: This process; each has a seed of its own, as processes without one have.
    """
    random.seed(rank)
    torch.manual_seed(rank)
    try:
        importlib.import_module("numpy").random.seed(rank)
    except ImportError:  # then the script has none either
        pass
    if way.compiled == "no":
        torch.compiler.set_stance("force_eager")
    elif way.compiled == "captured":
        torch.compiler.set_stance("default", force_backend=torch_names.by_operators)
    if FASTPATH in way.settings:
        torch.backends.mha.set_fastpath_enabled(False)
    if RANDOM in way.settings:
        torch_names.inductor_random_as_eager().__enter__()  # for the whole run
