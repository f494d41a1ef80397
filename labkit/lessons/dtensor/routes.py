"""One program by four routes: explicit in place, explicit functional, DTensor, parallelize_module.

The program is a stack of layers, of kind "mlp" (one all-reduce a layer) or "block" (attention and MLP, four). Its
forward is written once, as for one device; a route only chooses the modules in it. So whatever differs between two
routes comes from the route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from labkit import lessons
from labkit.lessons.shared.model_size import check_split
from labkit.lessons.shared.options import chosen

__all__ = ["KINDS", "ROUTES", "Layer", "Norm", "Stack", "build", "weights", "whole"]

cliff = lessons.program("cliff")
Make = Callable[..., nn.Module]

ROUTES = {"a": "explicit, in place", "b": "explicit, functional", "c": "DTensor", "d": "parallelize_module"}
KINDS = {"mlp": 1, "block": 4}
"""Kinds of layers, with the sums over the ranks that a layer of each needs."""

SHARDED = {"q": 0, "k": 0, "v": 0, "up": 0, "q_norm": 0, "k_norm": 0, "out": 1, "down": 1}
"""The dimension on which a parameter is split over the ranks; the others are whole on each."""


class Norm(nn.Module):
    """RMSNorm of all its features at once, (..., dim) -> the same, in operators that DTensor has rules for.

    `F.rms_norm` itself cannot be given features that are split: its decomposition adds eps in place to a mean that is
    Partial, which DTensor refuses (torch 2.13).
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.empty(dim), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        squares = x.float().square().sum(-1, keepdim=True)
        return x * torch.rsqrt(squares / self.dim + self.eps).to(x.dtype) * self.weight


class Layer(nn.Module):
    """One layer, (batch, tokens, dim) -> the same: `parts` are its modules by name, `attend` its attention.

    `settle` is called on what a projection back to the residual stream gives: with DTensor that is a Partial, and
    somebody has to say when it is summed.
    """

    def __init__(
        self,
        kind: str,
        head_dim: int,
        parts: dict[str, nn.Module],
        attend: Callable[[Tensor, Tensor, Tensor], Tensor] = F.scaled_dot_product_attention,
        settle: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.head_dim, self.attend, self.settle = kind, head_dim, attend, settle
        for name, module in parts.items():
            self.add_module(name, module)

    def forward(self: Any, x: Tensor) -> Tensor:
        if self.kind == "block":
            batch, tokens, _ = x.shape
            by_head = (batch, tokens, -1, self.head_dim)
            h = self.norm1(x)
            q = self.q_norm(self.q(h)).view(by_head).transpose(1, 2)
            k = self.k_norm(self.k(h)).view(by_head).transpose(1, 2)
            v = self.v(h).view(by_head).transpose(1, 2)
            x = self.add(x, self.out(self.attend(q, k, v).transpose(1, 2).flatten(2)))
        return self.add(x, self.down(F.gelu(self.up(self.norm2(x)))))

    def add(self, x: Tensor, projected: Tensor) -> Tensor:
        return x + (projected if self.settle is None else self.settle(projected))


class Stack(nn.Module):
    """The layers in turn. With a mesh the input becomes a DTensor on the way in, and a plain tensor on the way out."""

    def __init__(self, layers: Iterable[nn.Module], mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.mesh = mesh

    def forward(self, x: Tensor) -> Tensor:
        if self.mesh is not None:
            x = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        for layer in self.layers:
            x = layer(x)
        return x.full_tensor() if self.mesh is not None else x  # type: ignore[attr-defined]


def whole(config: Any, kind: str = "block", settle: Any = None, attend: Any = None) -> Stack:
    """The program on one device, with seeded weights: the reference of all routes. Raises ValueError for a kind.

    >>> x = cliff.Config(dim=64, heads=2, blocks=2, tokens=4).sample()
    >>> whole(cliff.Config(dim=64, heads=2, blocks=2, tokens=4), "mlp")(x).shape
    torch.Size([1, 4, 64])
    """
    model = _whole(config, kind, settle, attend)
    with torch.no_grad():
        for name, full in weights(config, kind):
            model.get_parameter(name).copy_(full)
    return model.eval()


def _whole(config: Any, kind: str, settle: Any = None, attend: Any = None) -> Stack:
    def linear(inputs: int, outputs: int) -> nn.Module:
        return nn.Linear(inputs, outputs, bias=False).requires_grad_(False)

    return _stack(config, kind, linear, linear, lambda: Norm(config.dim, config.eps), attend, settle)


def _stack(
    config: Any, kind: str, column: Make, row: Make, norm: Make, attend: Any = None, settle: Any = None
) -> Stack:
    """The layers, made of linear layers that are split by columns and by rows, and of norms of split features."""
    chosen([kind], KINDS, "kind")
    dim, hidden = config.dim, config.dim * config.mlp_ratio

    def parts() -> dict[str, nn.Module]:
        found = {
            "norm2": cliff.RMSNorm(dim, eps=config.eps),
            "up": column(dim, hidden),
            "down": row(hidden, dim),
        }
        if kind == "block":
            found |= {"norm1": cliff.RMSNorm(dim, eps=config.eps), "out": row(dim, dim)}
            found |= {name: column(dim, dim) for name in "qkv"}
            found |= {f"{name}_norm": norm() for name in "qk"}
        return found

    attend = attend or F.scaled_dot_product_attention
    return Stack(Layer(kind, config.head_dim, parts(), attend, settle) for _ in range(config.blocks))


def weights(config: Any, kind: str = "block") -> Iterator[tuple[str, Tensor]]:
    """The full weights by parameter name of `whole`: those of the model under study, with q, k and v apart."""
    for name, full in cliff.seeded(config):
        _, number, part, _ = name.split(".")
        if kind == "mlp" and part not in ("norm2", "up", "down"):
            continue
        for own, tensor in zip("qkv", full.chunk(3), strict=True) if part == "qkv" else [(part, full)]:
            yield f"layers.{number}.{own}.weight", tensor


def build(
    route: str,
    config: Any,
    kind: str,
    mesh: DeviceMesh,
    reduce: Callable[..., Tensor] | None = None,
    settle: bool = True,
) -> Stack:
    """One rank's share of the program by a route of ROUTES, on a mesh of one axis, with the seeded weights.

    Every rank allocates its own shards only. reduce: the all-reduce of an explicit route, instead of its own. settle:
    False leaves it to DTensor when the Partial results of route c are summed. Raises ValueError for an unknown route
    or kind, and for sizes that do not split.
    """
    chosen([route], ROUTES, "route")
    chosen([kind], KINDS, "kind")
    check_split(config, mesh.size())
    if route in "ab":
        return _explicit(config, kind, mesh, reduce or (cliff.inplace if route == "a" else cliff.functional))
    with torch.device("meta"):
        model = _whole(config, kind, _settled if settle and route == "c" else None,
                       heads_apart(mesh) if route == "c" else None)  # fmt: skip
    if route == "c":
        model.mesh = mesh
        for name, parameter in list(model.named_parameters()):
            dim = SHARDED.get(name.split(".")[-2])
            placed = distribute_tensor(parameter, mesh, [Replicate() if dim is None else Shard(dim)])
            module = model.get_submodule(name.removesuffix(".weight"))
            module.weight = nn.Parameter(placed, requires_grad=False)
    else:
        for layer in model.layers:
            parallelize_module(layer, mesh, plan(kind))
    model.to_empty(device=mesh.device_type)  # only now memory is taken, and only for this rank's shards
    _fill(model, config, kind, mesh)
    return model.eval()


def heads_apart(mesh: DeviceMesh) -> Callable[..., Tensor]:
    """Attention on each rank's own heads, as an operation on DTensors that are split by heads.

    DTensor has no rule for the attention kernel of CPUs; it searches the placements of its decomposition instead, which
    takes minutes on the first call (torch 2.13). `local_map` says what no rule says: heads do not mix.
    """
    by_head = [Shard(1)]
    return local_map(
        F.scaled_dot_product_attention,
        out_placements=by_head,
        in_placements=(by_head, by_head, by_head),
        redistribute_inputs=True,  # where propagation chose another placement
        device_mesh=mesh,
    )


def _settled(x: Any) -> Any:
    return x.redistribute(placements=[Replicate()])


def plan(kind: str) -> dict[str, ParallelStyle]:
    """The plan that route d gives to `parallelize_module`, by module name."""
    found: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if kind == "block":
        found |= {"v": ColwiseParallel(), "out": RowwiseParallel()}
        found |= {name: ColwiseParallel(use_local_output=False) for name in "qk"}
        found |= {f"{name}_norm": FeatureParallel() for name in "qk"}
    return found


class FeatureParallel(ParallelStyle):
    """A plan's entry for a norm whose features are split: a DTensor goes in, a local shard comes out.

    torch ships styles for linears and for norms of a split sequence; this one is what a plan has to bring along.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def split(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
            for key, parameter in module.named_parameters(recurse=False):
                shard = distribute_tensor(parameter, mesh, [Shard(0)])
                module.register_parameter(key, nn.Parameter(shard, requires_grad=False))

        def local(module: nn.Module, output: Any, mesh: DeviceMesh) -> Tensor:
            return output.to_local()

        return distribute_module(module, device_mesh, split, output_fn=local)  # type: ignore[arg-type]


def _fill(model: Stack, config: Any, kind: str, mesh: DeviceMesh) -> None:
    """Copy this rank's shares out of the seeded weights, which exist one at a time."""
    with torch.no_grad():
        for name, full in weights(config, kind):
            parameter, dim = model.get_parameter(name), SHARDED.get(name.split(".")[-2])
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            local.copy_(full if dim is None else full.chunk(mesh.size(), dim)[mesh.get_local_rank()])


def _explicit(config: Any, kind: str, mesh: DeviceMesh, reduce: Callable[..., Tensor]) -> Stack:
    size, rank, group = mesh.size(), mesh.get_local_rank(), mesh.get_group()
    model = _stack(
        config,
        kind,
        lambda inputs, outputs: cliff.ColumnParallelLinear(inputs, outputs, size, rank),
        lambda inputs, outputs: cliff.RowParallelLinear(inputs, outputs, size, rank, reduce, group),
        lambda: cliff.RMSNorm(config.dim, size, rank, reduce, group, config.eps),
    )
    with torch.no_grad():
        for name, full in weights(config, kind):
            model.get_submodule(name.removesuffix(".weight")).load(full)  # type: ignore[operator]
    return model.to(mesh.device_type).eval()
