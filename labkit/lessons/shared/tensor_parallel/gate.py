"""The all-reduce in the forms that topic 11 compares: in place, hidden from the compiler, functional, gated.

Each takes a tensor that its caller owns and a process group (None: the default one) and returns the sum over
the group's ranks. The in-place forms return the very tensor they were given; the functional one returns a new
tensor, in eager an AsyncCollectiveTensor that waits on first use.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.torch_compat import funcol

Reduce = Callable[..., Tensor]
"""What a layer calls on its partial sums: `reduce(x)`, or `reduce(x, group=group)` where a group was given."""


def inplace(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum `x` over the ranks in place and return it: the classic form, and the cheaper one in eager.

    Compiled, current torch rewrites it into the functional form and a copy back (torch/_dynamo/variables/
    functions.py, CollectiveFunctionRewriteVariable), so it no longer breaks the graph.
    """
    dist.all_reduce(x, group=group)
    return x


disabled = torch.compiler.disable(inplace, reason="the collective is hidden from the compiler")
"""`inplace`, out of Dynamo's sight: every call is a graph break (topic 11: about 160 a forward, Runs 8-9b)."""


def functional(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return a new tensor with the sum over the ranks: Tensor in, Tensor out, so that it can stand in a graph.

    In eager it pays for an allocation and a wrapper each call (topic 11, "eager regression trap", Run 12a).
    """
    return funcol.all_reduce(x, "sum", dist.group.WORLD if group is None else group)


def gated(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum over the ranks: functional while compiling, in place in eager (topic 11, "Gate funcol by compile mode").

    Use the returned tensor: whether `x` itself was changed depends on the mode.
    """
    if torch.compiler.is_compiling():
        return functional(x, group)
    return inplace(x, group)


all_reduce = gated
