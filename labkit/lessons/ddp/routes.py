"""The routes: ways to train one model on several ranks, each as a Trainer with the same four verbs.

A trainer takes this rank's share of the global batch, computes the loss, and leaves in every parameter the gradient of
the mean loss over the global batch: of its own piece, where the parameter is sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

from labkit import lessons, torch_compat
from labkit.lessons.ddp.kinds import Route, choose
from labkit.lessons.ddp.model import Model, Sizes, loss_of
from labkit.lessons.shared.variants import with_own_code
from labkit.ranks import here

__all__ = ["Gathered", "Trainer", "build", "gathered"]

cliff = lessons.program("cliff")


@dataclass
class Trainer:
    """One route, built on this rank. `model` holds the parameters, `forward` is what is called, compiled or not.

    data: (this rank's share of the batch, how many shares). scale: what the loss is multiplied with before backward.
    whole: makes of a parameter's own piece the whole tensor (a collective: every rank calls it). after: run between
    backward and the optimizer. capture: a context for the backward pass.
    """

    model: nn.Module
    forward: Callable[[Tensor], Tensor]
    data: tuple[int, int]
    scale: float = 1.0
    whole: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor
    after: Callable[[], Any] = lambda: None
    capture: Callable[[], Any] = nullcontext
    closing: ExitStack = field(default_factory=ExitStack)

    def share(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's part of the global batch."""
        index, count = self.data
        return images.chunk(count)[index], labels.chunk(count)[index]

    def backward(self, images: Tensor, labels: Tensor, phase: Callable[[], Any] = nullcontext) -> Tensor:
        """Forward and backward on this rank's share; returns its loss, detached. `phase()` wraps each of the two."""
        x, y = self.share(images, labels)
        with phase():
            loss = loss_of(self.forward(x), y)
        with phase(), self.capture():
            (loss * self.scale).backward()
            self.after()
        return loss.detach()

    def gradients(self) -> dict[str, Tensor]:
        """The gradients, whole, by the names of the plain model."""
        named = [(plain_name(n), p) for n, p in self.model.named_parameters()]
        return {n: self.whole(n, p.grad) for n, p in named if p.grad is not None}

    def close(self) -> None:
        """Take back the settings of the compiler that this route needed."""
        self.closing.close()


def plain_name(name: str) -> str:
    """The plain model's name of a parameter, without what wrappers and parametrizations put around it.

    >>> plain_name("module.blocks.0.up.parametrizations.weight.original")
    'blocks.0.up.weight'
    """
    name = name.removeprefix("module.").replace("_orig_mod.", "")
    return name.replace("parametrizations.weight.original", "weight")


def build(
    name: str, sizes: Sizes, compiler: Any = "aot_eager", cap_mb: float = 25.0, captured: Any = "eager"
) -> Trainer:
    """Build a route on this rank, untrained.

    compiler: backend of torch.compile. captured: that of compiled autograd, where the route has it. cap_mb: the size of
    DDP's buckets. Raises ValueError for a route that does not exist.
    """
    (route,) = choose([name])
    if route.kind == "ddp":
        return _ddp(route, sizes, compiler, cap_mb, captured)
    make = {"fsdp": _fsdp, "gathered": _gathered, "tensor": _tensor, "dtensor": _dtensor, "mesh": _mesh}
    if route.kind == "alone":
        model = _model(sizes)
        return Trainer(model, model, (0, 1))
    return make[route.kind](route, sizes, compiler)


def _model(*arguments: Any) -> Any:
    """The model on this rank's device, with code of its own."""
    return with_own_code(Model(*arguments)).to(here().device)


def _ours() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


# --- the model whole on every rank, the batch divided ---


def _ddp(route: Route, sizes: Sizes, compiler: Any, cap_mb: float, captured: Any) -> Trainer:
    closing = ExitStack()
    mode = route.mode or "no_optimization"
    closing.enter_context(torch_compat.ddp_mode(mode))
    model = DistributedDataParallel(_model(sizes), bucket_cap_mb=cap_mb)
    forward: Any = torch.compile(model, backend=compiler) if route.compiled else model
    capture: Callable[[], Any] = nullcontext
    if route.captured:
        whole_pass = torch.compile(backend=captured)  # made once: another one would compile once more
        capture = lambda: torch_compat.compiled_autograd(whole_pass)  # noqa: E731
    return Trainer(model, forward, _ours(), capture=capture, closing=closing)


# --- the parameters divided as well ---


def _fsdp(route: Route, sizes: Sizes, compiler: Any) -> Trainer:
    model: Any = _model(sizes)
    mesh = init_device_mesh(torch.device(here().device).type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    forward: Any = model
    if route.mode == "block":
        for block in model.blocks:
            block.compile(backend=compiler)
    elif route.compiled:
        forward = torch.compile(model, backend=compiler)
    return Trainer(model, forward, _ours(), whole=_full)


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
    rank, ranks = _ours()
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


def _gathered(route: Route, sizes: Sizes, compiler: Any) -> Trainer:
    model = gathered(_model(sizes))
    forward: Any = torch.compile(model, backend=compiler, fullgraph=True) if route.compiled else model
    scale = 1 / dist.get_world_size()  # the reduce-scatter sums, and the mean is wanted
    return Trainer(model, forward, _ours(), scale, whole=lambda n, t: _joined(t, 0))


def _joined(tensor: Tensor, dim: int, group: Any = None) -> Tensor:
    pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(pieces, tensor.contiguous(), group=group)
    return torch.cat(pieces, dim)


# --- every layer divided ---


def _tensor(
    route: Route,
    sizes: Sizes,
    compiler: Any,
    data: tuple[int, int] = (0, 1),
    group: Any = None,
    replicas: Any = None,
) -> Trainer:
    """Blocks split over `group`. The loss is the same on each of its ranks, and counts once: each has its share of it.

    What is whole on every rank of the group (the first and the last layer) has only a part of its gradient on each:
    they are summed. replicas: a group that holds the same pieces for other parts of the batch, to average over.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    reduce = cliff.inplace if route.mode == "inplace" else cliff.functional
    model = _model(sizes, ranks, rank, reduce, group)
    forward: Any = torch.compile(model, backend=compiler, fullgraph=True) if route.compiled else model

    def after() -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            if not name.startswith("blocks."):
                dist.all_reduce(parameter.grad, group=group)
            if replicas is not None:
                dist.all_reduce(parameter.grad, group=replicas)
                parameter.grad /= dist.get_world_size(replicas)

    def whole(name: str, tensor: Tensor) -> Tensor:
        if not name.startswith("blocks."):
            return tensor
        return _joined(tensor, 0 if ".up." in name else 1, group)

    return Trainer(model, forward, data, 1 / ranks, whole, after)


def _dtensor(route: Route, sizes: Sizes, compiler: Any) -> Trainer:
    model: Any = _model(sizes)
    mesh = init_device_mesh(torch.device(here().device).type, (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    forward: Any = torch.compile(model, backend=compiler, fullgraph=True) if route.compiled else model
    return Trainer(model, forward, (0, 1), whole=_full)


def _mesh(route: Route, sizes: Sizes, compiler: Any) -> Trainer:
    """Two axes: the batch divided along one, layers along the other; needs an even number of ranks, 4 and more."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh(
        torch.device(here().device).type, (ranks // 2, 2), mesh_dim_names=("data", "tensor")
    )
    data = (mesh.get_local_rank("data"), ranks // 2)
    return _tensor(route, sizes, compiler, data, mesh.get_group("tensor"), mesh.get_group("data"))
