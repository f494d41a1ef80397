"""DTensor: its sharding rules and its cache of them."""

from __future__ import annotations

from labkit.torch_compat.versions import Feature, require

FEATURES = (
    Feature(
        "DTensor's cache of rules",
        (
            "torch._C._get_DTensor_sharding_propagator_cache_stats",
            "torch._C._clear_DTensor_sharding_propagator_cache",
            "torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear",
        ),
        "the cost of a first operation in lesson 10",
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
    """Count how often this process found the rule of a DTensor operation in its cache so far.

    Returns:
        Hits and misses.
    """
    return tuple(require("torch._C._get_DTensor_sharding_propagator_cache_stats")())


def forget_dtensor_rules() -> None:
    """Empty DTensor's caches of rules, so that the next operation of each kind is worked out again."""
    require("torch._C._clear_DTensor_sharding_propagator_cache")()
    propagator = require("torch.distributed.tensor").DTensor._op_dispatcher.sharding_propagator
    propagator.propagate_op_sharding.cache_clear()


def dtensor_rules() -> set[str]:
    """List the operators that DTensor has a rule of its own for, such as 'aten.mm.default'."""
    propagator = require("torch.distributed.tensor").DTensor._op_dispatcher.sharding_propagator
    tables = ("op_strategy_funcs", "op_single_dim_strategy_funcs", "op_to_rules")
    return {str(op) for name in tables for op in getattr(propagator, name, {})}
