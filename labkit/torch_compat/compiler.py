"""Dynamo: what a rank imports before it forks, fake tensors, and the settings of all compilers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from oddrank.torch_names import DYNAMO, require

# imported once by the process that ranks are forked from: the first compile in a rank then needs no import
# fmt: off
PRELOAD = ("torch", "torch.distributed", DYNAMO, "torch._inductor.compile_fx", "torch.distributed.tensor")
# fmt: on


def fake_tensors() -> Any:
    """Give a context in which new tensors are fake: they have a shape and no memory."""
    return require("torch._subclasses.fake_tensor.FakeTensorMode")(allow_non_fake_inputs=True)


def refusals() -> Any:
    """Give the error with which Dynamo refuses a program under `fullgraph=True`, to be caught."""
    return require("torch._dynamo.exc.Unsupported")


def code_of(compiled: Any, *args: Any) -> list[str]:
    """Call compiled code, and return what Inductor wrote for it, the forward first; caches keep their code."""
    return list(require("torch._inductor.utils.run_and_get_code")(compiled, *args)[1])


def patched(dotted: str, **values: Any) -> Any:
    """Give a context with other settings of the compiler, such as `patched("inductor.config", max_autotune=True)`."""
    if not values:
        return contextlib.nullcontext()
    for name in values:
        require(f"torch._{dotted}.{name}")
    return require(f"torch._{dotted}.patch")(**values)


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Give a context after which the compiler's settings and its stance are as they were before."""
    configs = (
        (require("torch._dynamo.config.get_config_copy"), require("torch._dynamo.config.load_config")),
        (require("torch._functorch.config.get_config_copy"), require("torch._functorch.config.load_config")),
        (require("torch._inductor.config.get_config_copy"), require("torch._inductor.config.load_config")),
        (require("torch.compiler.config.get_config_copy"), require("torch.compiler.config.load_config")),
    )
    before = [(copied, load, copied()) for copied, load in configs]
    with require("torch.compiler.set_stance")("default"):
        try:
            yield
        finally:
            for copied, load, values in before:
                now = copied()
                load({name: was for name, was in values.items() if now[name] != was})
