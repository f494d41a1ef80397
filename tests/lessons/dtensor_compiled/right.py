"""Right answers to the exercises of lesson 10b in other words than those of the solutions."""

from __future__ import annotations

import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from lessons.dtensor_compiled.wrong import F_BACKWARD, SETTLE, always_the_tokens, always_the_weights
from torch.distributed.tensor import DTensor, Shard


def from_bytes(x, gate, up, down):
    tokens, weights = 2 * x.numel(), gate.numel() + up.numel() + down.numel()
    way = always_the_tokens if tokens < weights else always_the_weights
    return way(x, gate, up, down)


def by_hand(x, gate, up, down):
    """Functional collectives on the local tensors."""
    mesh, dim = x.device_mesh, x.size(1)
    group, mine = mesh.get_group(), [w.to_local() for w in (x, gate, up, down)]
    if 2 * len(x) <= 3 * len(down):
        all_tokens = funcol.all_gather_tensor(mine[0], 0, group)
        hidden = F.gelu(all_tokens @ mine[1]) * (all_tokens @ mine[2])
        y = funcol.reduce_scatter_tensor(hidden @ mine[3], "sum", 0, group)
    else:
        gate, up = (funcol.all_gather_tensor(w.t().contiguous(), 0, group).t() for w in mine[1:3])
        y = (F.gelu(mine[0] @ gate) * (mine[0] @ up)) @ funcol.all_gather_tensor(mine[3], 0, group)
    assert y.shape[1] == dim
    return DTensor.from_local(funcol.wait_tensor(y), mesh, [Shard(0)])


def as_lists_and_sets():
    return {
        "C": [{0, 1}, "open Partial", SETTLE],
        "A": ((1, 0), "no f", F_BACKWARD),
        "B": (1, "uneven shards", "pad the rows"),
    }


RIGHT = {"dtensor_compiled.bytes": (from_bytes, by_hand), "dtensor_compiled.jobs": (as_lists_and_sets,)}
