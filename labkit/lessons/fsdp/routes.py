"""Routes of the lesson: FSDP2, gathered weights and tensor parallelism, each as a function that builds it on a rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.utils import parametrize

from labkit import lessons, torch_compat
from labkit.lessons.shared.training import Route
from labkit.lessons.shared.training_model import Model, Sizes
from labkit.lessons.shared.variants import with_own_code
from labkit.ranks import here

__all__ = ["FOUR", "ROUTES", "Gathered", "gathered"]

cliff = lessons.program("cliff")


# --- the parameters divided ---


def fsdp(model: Any, backend: Any, how: str) -> Route:
    """FSDP2 over the blocks and the model; `how` is 'eager', 'block' (each block compiled) or 'whole'."""
    mesh = init_device_mesh(torch.device(here().device).type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if how == "block":
        for block in model.blocks:
            block.compile(backend=backend)
    forward = torch.compile(model, backend=backend) if how == "whole" else model
    return Route(model, forward, whole=_full)


def _full(name: str, tensor: Any) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Gathered(nn.Module):
    """A parametrization: the whole weight out of this rank's rows, by a functional all-gather on dimension 0.

    Its gradient is a reduce-scatter, so the gradient of a piece is summed over the ranks (arXiv 2411.00284).
    """

    def forward(self, piece: Tensor) -> Tensor:
        return torch_compat.funcol.all_gather_tensor(piece, 0, dist.group.WORLD)


def gathered(model: nn.Module) -> nn.Module:
    """Shard every weight of `model` by rows over the default group, gathered where it is used; returns the model.

    Raises ValueError for a weight whose rows do not split evenly.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for name, module in list(model.named_modules()):
        for own, parameter in list(module.named_parameters(recurse=False)):
            if parameter.shape[0] % ranks:
                raise ValueError(
                    f"{name}.{own} has {parameter.shape[0]} rows, which {ranks} ranks do not divide"
                )
            piece = parameter.detach().chunk(ranks)[rank].clone()
            module.register_parameter(own, nn.Parameter(piece))
            parametrize.register_parametrization(module, own, Gathered(), unsafe=True)
    return model


def gathered_weights(model: Any, backend: Any) -> Route:
    """Every weight sharded by rows and gathered where it is used, in one graph."""
    model = gathered(model)
    scale = 1 / dist.get_world_size()  # the reduce-scatter sums, and the mean is wanted
    forward = torch.compile(model, backend=backend, fullgraph=True)
    return Route(model, forward, scale=scale, whole=lambda n, t: _joined(t, 0))


def _joined(tensor: Tensor, dim: int, group: Any = None) -> Tensor:
    pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(pieces, tensor.contiguous(), group=group)
    return torch.cat(pieces, dim)


# --- every layer divided ---


def tensor(
    model: Any,
    backend: Any,
    share: tuple[int, int] = (0, 1),
    group: Any = None,
    replicas: Any = None,
) -> Route:
    """Blocks split over `group`. The loss is the same on each of its ranks, and counts once: each has its share of it.

    What is whole on every rank of the group (the first and the last layer) has only a part of its gradient on each:
    they are summed. replicas: a group that holds the same pieces for other parts of the batch, to average over.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    split: Any = with_own_code(Model(Sizes(), ranks, rank, cliff.functional, group)).to(here().device)
    forward = torch.compile(split, backend=backend, fullgraph=True)

    def after() -> None:
        for name, parameter in split.named_parameters():
            if parameter.grad is None:
                continue
            if not name.startswith("blocks."):
                dist.all_reduce(parameter.grad, group=group)
            if replicas is not None:
                dist.all_reduce(parameter.grad, group=replicas)
                parameter.grad /= dist.get_world_size(replicas)

    def whole(name: str, piece: Tensor) -> Tensor:
        return _joined(piece, 0 if ".up." in name else 1, group) if name.startswith("blocks.") else piece

    return Route(split, forward, after, share, 1 / ranks, whole)


def placed(model: Any, backend: Any) -> Route:
    """Blocks split by DTensor's plans."""
    mesh = init_device_mesh(torch.device(here().device).type, (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return Route(model, torch.compile(model, backend=backend, fullgraph=True), share=(0, 1), whole=_full)


def mesh_of_two(model: Any, backend: Any) -> Route:
    """Two axes: the batch divided along one, layers along the other; needs an even number of ranks, 4 and more."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh(
        torch.device(here().device).type, (ranks // 2, 2), mesh_dim_names=("data", "tensor")
    )
    share = (mesh.get_local_rank("data"), ranks // 2)
    group, replicas = mesh.get_group("tensor"), mesh.get_group("data")
    return tensor(model, backend, share=share, group=group, replicas=replicas)


ROUTES: dict[str, Callable[[Any, Any], Route]] = {
    "FSDP2, eager": partial(fsdp, how="eager"),
    "FSDP2, block by block": partial(fsdp, how="block"),
    "FSDP2, whole": partial(fsdp, how="whole"),
    "gathered weights": gathered_weights,
    "tensor parallel, functional": tensor,
    "tensor parallel, DTensor": placed,
}
FOUR: dict[str, Callable[[Any, Any], Route]] = {"data x tensor parallel": mesh_of_two}  # on 4 ranks
