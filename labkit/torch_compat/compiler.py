"""Dynamo: reset, hidden code, dynamic sizes, fake tensors, and the settings of all compilers."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from labkit.torch_compat.versions import Feature, UnsupportedTorch, require

FEATURES = (
    Feature(
        "Dynamo forgets",
        ("torch._dynamo.reset",),
        "whatever compiles the same function more than once: most experiments",
    ),
    Feature(
        "code that Dynamo leaves alone",
        (
            "torch._C._dynamo.eval_frame._FrameExecStrategy",
            "torch._C._dynamo.eval_frame._FrameAction",
            "torch._C._dynamo.eval_frame.set_code_exec_strategy",
        ),
        "the `shm` backend, checked groups, and counting executed regions",
    ),
    Feature(
        "the compilers' settings",
        ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config"),
        "experiments that compare settings, and `contract` on settings in effect",
    ),
    Feature(
        "the modes of DDP",
        (
            "torch._dynamo.config.optimize_ddp",
            "torch._dynamo.trace_rules.LEGACY_MOD_INLINELIST",
            "torch._dynamo.trace_rules.get_legacy_mod_inlinelist",
            "torch._inductor.config._fuse_ddp_communication",
            "torch._inductor.config._fuse_ddp_bucket_size",
        ),
        "DDP in lesson 13",
    ),
    Feature(
        "tensors without memory",
        ("torch._subclasses.fake_tensor.FakeTensorMode", "torch._subclasses.fake_tensor.FakeTensor"),
        "lesson 16 and offloading in lesson 07",
    ),
    Feature(
        "sizes that are said to vary",
        ("torch._dynamo.mark_dynamic", "torch._dynamo.decorators.mark_unbacked"),
        "dynamic shapes in lesson 09",
    ),
)

COMPILER = os.path.join("torch", "_dynamo", "convert_frame.py")  # on the stack while Dynamo compiles
# imported once by the process that ranks are forked from: the first compile in a rank then needs no import
# fmt: off
PRELOAD = ("torch", "torch.distributed", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor")
# fmt: on


def dynamo_reset() -> None:
    """Forget everything Dynamo compiled or skipped in this process (`torch._dynamo.reset`)."""
    require("torch._dynamo").reset()


def uncompiled(fn: Any) -> Any:
    """Return the function or module that `torch.compile` was given; `fn` itself where it is not compiled."""
    inner = getattr(fn, "_orig_mod", None) or getattr(fn, "_torchdynamo_orig_callable", None)
    return fn if inner is None else inner


def hide_from_dynamo(*codes: types.CodeType) -> None:
    """Make Dynamo run these code objects as they are, and not compile them. Dynamo is not imported for it."""
    frames = require("torch._C._dynamo.eval_frame")
    try:
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        for code in codes:
            frames.set_code_exec_strategy(code, skip)
    except AttributeError:
        raise UnsupportedTorch("this torch's Dynamo has no set_code_exec_strategy, which shm needs") from None


def is_fake(tensor: Any) -> bool:
    """Say whether a tensor is fake: it stands for another one while a program is traced."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def fake_tensors() -> Any:
    """Give a context in which new tensors are fake: they have a shape and no memory."""
    return require("torch._subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)


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
    return require(f"torch._{dotted}").patch(**values) if values else contextlib.nullcontext()


def no_default_overlap() -> dict[str, Any]:
    """Return settings for `patched("inductor.config")` under which Inductor moves no collective by default.

    Since torch 2.14 Inductor moves some by default; before, there is nothing to turn off.
    """
    there = hasattr(require("torch._inductor.config").aten_distributed_optimizations, "enable_simple_overlap")
    return {"aten_distributed_optimizations.enable_simple_overlap": False} if there else {}


def overlap_scheduling(**more: Any) -> dict[str, Any]:
    """Return settings for `patched("inductor.config")` that overlap collectives by estimates and merge none.

    torch 2.11 lacks two of these: it times products on a GPU where this asks for an estimate, so that there each takes
    1 ms unless `more` says otherwise.

    Args:
        more: further settings of `aten_distributed_optimizations`.
    """
    there = require("torch._inductor.config").aten_distributed_optimizations
    wanted = {
        "enable_overlap_scheduling": True,
        "max_memory_increase_gb": 10.0,
        "collective_bucketing": False,
        **more,
    }
    later = {"compute_estimator": "analytical", "pre_bucketing_fsdp_collectives": False}
    wanted |= {name: value for name, value in later.items() if hasattr(there, name)}
    if not hasattr(there, "compute_estimator"):
        wanted.setdefault("custom_runtime_estimation", _one_millisecond)
    return {f"aten_distributed_optimizations.{name}": value for name, value in wanted.items()}


def _one_millisecond(node: Any, override_size: Any = None) -> float | None:
    from torch.utils.flop_counter import flop_registry

    return 1.0 if getattr(node.target, "overloadpacket", None) in flop_registry else None


@contextlib.contextmanager
def ddp_mode(mode: str) -> Iterator[None]:
    """Build and compile DDP in a block with this setting of `optimize_ddp`, and leave nothing of it behind.

    Where DDP uses its Python reducer it leaves two things behind: an Inductor setting, and its own module among those
    that Dynamo looks into, which changes how every later DDP model compiles (torch/nn/parallel/distributed.py).
    """
    rules = require("torch._dynamo.trace_rules")
    kept = set(rules.LEGACY_MOD_INLINELIST)
    try:
        with (
            patched("dynamo.config", optimize_ddp=mode),
            patched("inductor.config", _fuse_ddp_communication=False, _fuse_ddp_bucket_size=25),
        ):
            yield
    finally:
        rules.LEGACY_MOD_INLINELIST.intersection_update(kept)
        rules.get_legacy_mod_inlinelist.cache_clear()


def mark(tensor: Any, axis: int, how: str) -> None:
    """Tell Dynamo that a size of a tensor varies.

    Args:
        tensor: the tensor.
        axis: the dimension whose size varies.
        how: 'mark_dynamic' or 'mark_unbacked' (torch/_dynamo/decorators.py).
    """
    require(f"torch._dynamo.{how}" if how == "mark_dynamic" else f"torch._dynamo.decorators.{how}")(
        tensor, axis
    )


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


def symbolic(graph: Any) -> bool:
    """Say whether a graph of Dynamo's is dynamic: the size of an input, or an input itself, is a symbol."""
    import torch

    symbols = (torch.SymInt, torch.SymFloat)
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("example_value")
        if isinstance(value, symbols):
            return True
        if isinstance(value, torch.Tensor) and any(
            isinstance(size, symbols) for size in (*value.shape, *value.stride())
        ):
            return True
        # a Python number that varies becomes an input, a tensor of one element
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False):
            return True
    return False
