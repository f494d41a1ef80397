"""DTensor: its sharding rules."""

from __future__ import annotations

from labkit.torch_compat.versions import require


def dtensor_rules() -> set[str]:
    """List the operators that DTensor has a rule of its own for, such as 'aten.mm.default'."""
    tables = (
        require("torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs"),
        require(
            "torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.op_single_dim_strategy_funcs"
        ),
        require("torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.op_to_rules"),
    )
    return {str(op) for table in tables for op in table}
