"""DTensor: its sharding rules, its cache of them, and the phases of its operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from labkit.torch_compat.versions import Feature, UnsupportedTorch, require

FEATURES = (
    Feature(
        "DTensor's cache of rules",
        (
            "torch._C._get_DTensor_sharding_propagator_cache_stats",
            "torch._C._clear_DTensor_sharding_propagator_cache",
            "torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear",
        ),
        "the cost of a first operation in `labkit run routes`",
    ),
    Feature(
        "DTensor's phases",
        (
            "torch.distributed.tensor.DTensor.from_local",
            "torch.distributed.tensor.DTensor.to_local",
            "torch.distributed.tensor.DTensor.redistribute",
            "torch.distributed.tensor._dispatch.redistribute_local_tensor",
            "torch.distributed._functional_collectives.all_reduce",
        ),
        "where the time of DTensor goes in `labkit run routes`",
    ),
    Feature(
        "DTensor's rules",
        (
            "torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs",
            "torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.op_single_dim_strategy_funcs",
            "torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.op_to_rules",
        ),
        "how many operators DTensor covers, in lesson 10",
    ),
)


def dtensor_cache() -> tuple[int, int]:
    """How often this process found the rule of a DTensor operation in its cache so far, and how often it did not."""
    return tuple(require("torch._C._get_DTensor_sharding_propagator_cache_stats")())


def forget_dtensor_rules() -> None:
    """Empty the caches of what DTensor has worked out: each operation is then as the first of its kind."""
    require("torch._C._clear_DTensor_sharding_propagator_cache")()
    propagator = require("torch.distributed.tensor").DTensor._op_dispatcher.sharding_propagator
    propagator.propagate_op_sharding.cache_clear()


@contextlib.contextmanager
def around_dtensor(turn: Callable[[str | None], None]) -> Iterator[None]:
    """Call `turn(name)` where DTensor begins to wrap or redistribute, or an all-reduce begins; turn(None) after.

    Names: 'wrap', 'redistribute', 'sums'. They nest: a redistribution may hold an all-reduce.
    """
    dtensor = require("torch.distributed.tensor").DTensor
    dispatch = require("torch.distributed.tensor._dispatch")
    places = [
        (dtensor, "from_local", "wrap"),
        (dtensor, "to_local", "wrap"),
        (dtensor, "redistribute", "redistribute"),
    ]
    places += [(dispatch, "redistribute_local_tensor", "redistribute")]
    places += [(require("torch.distributed._functional_collectives"), "all_reduce", "sums")]

    def told(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            turn(name)
            try:
                return plain(*args, **kwargs)
            finally:
                turn(None)

        return call

    with contextlib.ExitStack() as stack:
        for owner, attribute, name in places:
            plain = getattr(owner, attribute, None)
            if plain is None:
                raise UnsupportedTorch(f"this torch's DTensor has no {attribute}, which this needs")
            stack.enter_context(mock.patch.object(owner, attribute, told(name, plain)))
        yield


def dtensor_rules() -> set[str]:
    """The operators that DTensor has a rule of its own for, such as 'aten.mm.default'."""
    propagator = require("torch.distributed.tensor").DTensor._op_dispatcher.sharding_propagator
    tables = ("op_strategy_funcs", "op_single_dim_strategy_funcs", "op_to_rules")
    return {str(op) for name in tables for op in getattr(propagator, name, {})}
