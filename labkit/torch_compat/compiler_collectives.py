"""The compiler's own collectives: ranks that agree on guards, or on traces, before they run or compile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from labkit.torch_compat.versions import Feature, UnsupportedTorch, require

FEATURES = (
    Feature(
        "ranks that agree on guards and traces",
        ("torch.compiler.set_enable_guard_collectives", "torch._dynamo.config.enable_compiler_collectives"),
        "these two defences in lessons 08 and 09",
    ),
    Feature(
        "compiler collectives on CPU ranks",
        ("torch._dynamo.distributed._COMPILE_PG", "torch._dynamo.device_interface.CpuInterface"),
        "compiler collectives in lesson 09 without a GPU",
    ),
)


@contextlib.contextmanager
def compiling_together(guards: bool = False, compiler: bool = False) -> Iterator[None]:
    """Turn on the compiler's collectives in a block.

    Args:
        guards: Ranks exchange the results of their guards (`torch.compiler.set_enable_guard_collectives`).
        compiler: Ranks exchange what they traced (`torch._dynamo.config.enable_compiler_collectives`).

    Raises:
        UnsupportedTorch: If this torch has no such setting.
    """
    import torch

    if not hasattr(torch.compiler, "set_enable_guard_collectives"):
        raise UnsupportedTorch("this torch has no torch.compiler.set_enable_guard_collectives")
    before = torch.compiler.set_enable_guard_collectives(guards)
    try:
        with require("torch._dynamo.config").patch(enable_compiler_collectives=compiler):
            yield
    finally:
        torch.compiler.set_enable_guard_collectives(bool(before))


@contextlib.contextmanager
def compiler_collectives_on_cpu() -> Iterator[None]:
    """Make compiler collectives run between CPU ranks, which torch 2.13 does not.

    All ranks have to enter the block at once.

    It gathers over a group that must know exactly one type of device (gloo's own names two), and enters that device's
    `device` context with an index modulo the number of accelerators (torch/_dynamo/output_graph.py,
    run_compiler_collective). So the group is made for the CPU alone, the context does nothing, and the number is one.
    """
    import torch

    where = require("torch._dynamo.distributed")
    interface = require("torch._dynamo.device_interface").CpuInterface
    if not hasattr(where, "_COMPILE_PG"):
        raise UnsupportedTorch("this torch keeps the group of its compiler collectives elsewhere")
    kept = where._COMPILE_PG, interface.__dict__.get("device"), torch.accelerator.device_count
    where._COMPILE_PG = torch.distributed.new_group(backend="cpu:gloo")
    interface.device = lambda index=None: contextlib.nullcontext()
    torch.accelerator.device_count = lambda: 1  # type: ignore[assignment]
    try:
        yield
    finally:
        where._COMPILE_PG, torch.accelerator.device_count = kept[0], kept[2]
        if kept[1] is None:
            del interface.device
        else:
            interface.device = kept[1]
