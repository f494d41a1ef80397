"""Names the parameters that an error of torch means, from the modules of the process that raised it."""

from __future__ import annotations

import gc
import re
import traceback
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from oddrank import torch_names
from oddrank.look import callables, checkpoints
from oddrank.look.replicas import living

__all__ = ["name_parameters"]

MOST = 8  # names in a list
_UNUSED = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_MISSING = "Missing key in checkpoint state_dict"
_MIXED = "got mixed torch.Tensor and DTensor"


def name_parameters(error: BaseException) -> None:
    """Add a note with names to an error that gives indices, or means DTensors and others, or names that are changed.

    Args:
        error: The error that a script raised; an error about something else stays as it is.
    """
    text = str(error)
    if at := _UNUSED.search(text):
        note = _unused(error, [int(number) for number in at[1].split()])
    else:
        note = _mixed() if _MIXED in text else _missing(error) if _MISSING in text else ""
    if note:
        error.add_note(note)


def _unused(error: BaseException, indices: list[int]) -> str:
    selves = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    ddp = next((one for one in selves if isinstance(one, DistributedDataParallel)), None)
    names = torch_names.ddp_parameters(ddp) if ddp is not None else []
    if not names or max(indices) >= len(names):
        return ""
    return (
        f"the parameters without a gradient are {_list([names[i] for i in indices])}: does the forward of this step use"
        " them?"
    )


def _mixed() -> str:
    known: dict[int, tuple[str, Any]] = {}
    gc.collect()  # modules in cycles that nobody uses any more
    for module in living():
        for name, parameter in module.named_parameters():
            known.setdefault(id(parameter), (name.replace("_orig_mod.", ""), parameter))
    trained = [found for found in known.values() if found[1].grad is not None] or list(known.values())
    sharded = [name for name, parameter in trained if hasattr(parameter, "placements")]
    plain = [name for name, parameter in trained if not hasattr(parameter, "placements")]
    if not (sharded and plain):
        return ""
    return (
        f"plain parameters: {_list(plain)}; DTensors: {_list(sharded)}. Make the plain ones replicated DTensors"
        " (distribute_tensor with Replicate()), or handle the two groups apart"
    )


def _missing(error: BaseException) -> str:
    """Which names of a distributed checkpoint differ from the names that are asked for, by wrappers only."""
    planner: Any = next(
        (
            held
            for frame, _ in traceback.walk_tb(error.__traceback__)
            if hasattr(held := frame.f_locals.get("planner"), "state_dict")
            and getattr(held, "metadata", None) is not None
        ),
        None,
    )
    if planner is None:
        return ""
    asked, given = planner.state_dict, planner.metadata.state_dict_metadata
    pairs, wrappers = checkpoints.renamed(asked, given)
    if not pairs:
        return ""
    (name, other), lacking = next(iter(pairs.items())), sum(key not in given for key in asked)
    said = f"the checkpoint has `{other}` where `{name}` is asked for: {len(pairs)} of the {lacking} missing names"
    said += f" differ only by {', '.join(f'`{one}`' for one in wrappers)}"
    if checkpoints.COMPILED in wrappers:
        lines = ", ".join(callables.renaming)
        said += f", which torch.compile(module) adds{f' ({lines})' if lines else ''}; module.compile() keeps the names"
    else:
        said += ": save and load the module inside of the wrapper"
    return said


def _list(names: list[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more
