"""Dynamo: reset, hidden code, dynamic sizes, fake tensors, and the settings of all compilers."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from labkit.torch_compat.versions import find, require

COMPILER = os.path.join("torch", "_dynamo", "convert_frame.py")  # on the stack while Dynamo compiles
# imported once by the process that ranks are forked from: the first compile in a rank then needs no import
# fmt: off
PRELOAD = ("torch", "torch.distributed", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor")
# fmt: on


def dynamo_reset() -> None:
    """Forget everything Dynamo compiled or skipped in this process (`torch._dynamo.reset`)."""
    require("torch._dynamo.reset")()


def uncompiled(fn: Any) -> Any:
    """Return the function or module that `torch.compile` was given; `fn` itself where it is not compiled."""
    inner = getattr(fn, "_orig_mod", None) or getattr(fn, "_torchdynamo_orig_callable", None)
    return fn if inner is None else inner


def hide_from_dynamo(*codes: types.CodeType, calls: bool = False) -> None:
    """Make Dynamo run these code objects as they are, and not compile them. Dynamo is not imported for it.

    Args:
        codes: the code objects.
        calls: also run as it is what they call. Otherwise a function that they call may be compiled.
    """
    action = require("torch._C._dynamo.eval_frame._FrameAction")
    inside = action.SKIP if calls else action.DEFAULT
    skip = require("torch._C._dynamo.eval_frame._FrameExecStrategy")(action.SKIP, inside)
    hide = require("torch._C._dynamo.eval_frame.set_code_exec_strategy")
    for code in codes:
        hide(code, skip)


def is_fake(tensor: Any) -> bool:
    """Say whether a tensor is fake: it stands for another one while a program is traced."""
    if "torch._subclasses.fake_tensor" not in sys.modules:
        return False
    return isinstance(tensor, require("torch._subclasses.fake_tensor.FakeTensor"))


def fake_tensors() -> Any:
    """Give a context in which new tensors are fake: they have a shape and no memory."""
    return require("torch._subclasses.fake_tensor.FakeTensorMode")(allow_non_fake_inputs=True)


def renamed(owner: Any, new: str, old: str) -> Any:
    """Return a function that newer torch has under another name, and warns about under the old one.

    Args:
        owner: the module or class that has it.
        new: its name in newer torch.
        old: its name before.
    """
    return getattr(owner, new, None) or getattr(owner, old)


def patched(dotted: str, **values: Any) -> Any:
    """Give a context with other settings of the compiler, such as `patched("inductor.config", max_autotune=True)`."""
    if not values:
        return contextlib.nullcontext()
    for name in values:
        require(f"torch._{dotted}.{name}")
    return require(f"torch._{dotted}.patch")(**values)


def no_default_overlap() -> dict[str, Any]:
    """Return settings for `patched("inductor.config")` under which Inductor moves no collective by default.

    Since torch 2.14 Inductor moves some by default; before, there is nothing to turn off.
    """
    moves = find("torch._inductor.config.aten_distributed_optimizations.enable_simple_overlap", since="2.14")
    return {} if moves is None else {"aten_distributed_optimizations.enable_simple_overlap": False}


def overlap_scheduling(**more: Any) -> dict[str, Any]:
    """Return settings for `patched("inductor.config")` that overlap collectives by estimates and merge none.

    torch 2.11 times products on a GPU where this asks for an estimate, so that there each takes 1 ms unless `more` says
    otherwise.

    Args:
        more: further settings of `aten_distributed_optimizations`.
    """
    wanted = {
        "enable_overlap_scheduling": True,
        "max_memory_increase_gb": 10.0,
        "collective_bucketing": False,
        **more,
    }
    if find("torch._inductor.config.aten_distributed_optimizations.compute_estimator", since="2.12"):
        wanted["compute_estimator"] = "analytical"
    else:
        wanted.setdefault("custom_runtime_estimation", _one_millisecond)
    merges = find(
        "torch._inductor.config.aten_distributed_optimizations.pre_bucketing_fsdp_collectives", since="2.13"
    )
    if merges is not None:
        wanted["pre_bucketing_fsdp_collectives"] = False
    return {f"aten_distributed_optimizations.{name}": value for name, value in wanted.items()}


def _one_millisecond(node: Any, override_size: Any = None) -> float | None:
    from torch.utils.flop_counter import flop_registry

    return 1.0 if getattr(node.target, "overloadpacket", None) in flop_registry else None


@contextlib.contextmanager
def ddp_mode(mode: str) -> Iterator[None]:
    """Build and compile DDP in a block with this setting of `optimize_ddp`, and undo all that it sets.

    Where DDP uses its Python reducer it leaves two things: an Inductor setting, and its own module among those
    that Dynamo looks into, which changes how every later DDP model compiles (torch/nn/parallel/distributed.py).
    """
    inlined = require("torch._dynamo.trace_rules.LEGACY_MOD_INLINELIST")
    kept = set(inlined)
    try:
        with (
            patched("dynamo.config", optimize_ddp=mode),
            patched("inductor.config", _fuse_ddp_communication=False, _fuse_ddp_bucket_size=25),
        ):
            yield
    finally:
        inlined.intersection_update(kept)
        require("torch._dynamo.trace_rules.get_legacy_mod_inlinelist").cache_clear()


def mark_dynamic(tensor: Any, axis: int) -> None:
    """Tell Dynamo that the size of a tensor along one axis varies."""
    require("torch._dynamo.mark_dynamic")(tensor, axis)


@contextlib.contextmanager
def quiet_dynamo() -> Iterator[None]:
    """Silence Dynamo's warnings in a block."""
    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
