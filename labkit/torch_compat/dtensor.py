"""DTensor: its sharding rules."""

from __future__ import annotations

from labkit.torch_compat.versions import Feature, require

FEATURES = (
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


def dtensor_rules() -> set[str]:
    """List the operators that DTensor has a rule of its own for, such as 'aten.mm.default'."""
    propagator = require("torch.distributed.tensor").DTensor._op_dispatcher.sharding_propagator
    tables = ("op_strategy_funcs", "op_single_dim_strategy_funcs", "op_to_rules")
    return {str(op) for name in tables for op in getattr(propagator, name, {})}
