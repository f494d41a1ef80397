"""DTensor placements: what a rank holds with each of them, and which ways of making one do what is said."""

from __future__ import annotations

import cProfile
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor as dt
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from labkit.lessons.shared.capture import first_line
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import around_operators


@probe
def placements(bench: Bench) -> Seen:
    """Tensors made with each placement over four ranks: what each rank holds and allocates, and what is refused."""
    found = bench.run(_placements, ranks=4)
    mine = [one.pop("mine") for one in found]
    by_rank = {name: [one[name] for one in mine] for name in mine[0]}
    return found[0] | by_rank | bench.run(_two_by_four, ranks=8, backend="fake")[0]


def _making(make: Callable[[], Any]) -> tuple[Any, int]:
    """What `make` returns, and the bytes of the largest tensor that an operator makes on the way."""
    sizes: list[int] = []

    def below(func: Any, args: Any, kwargs: Any) -> Any:
        made = func(*args, **kwargs)
        sizes.append(made.nbytes if isinstance(made, torch.Tensor) else 0)
        return made

    with around_operators(below):
        made = make()
    return made, max(sizes)


def _checked(**check: Any) -> list[Any]:
    """The values and the shapes that ranks have after from_local of ones that do not fit together, or the refusal."""
    mesh, rank = init_device_mesh("cpu", (4,)), dist.get_rank()
    found: list[Any] = []
    for local, look in (
        (torch.full((2,), float(rank)), lambda x: x.to_local()[0].item()),
        (torch.ones(2 + rank), lambda x: list(x.shape)),
    ):
        each: list[Any] = [None] * 4
        try:
            mine = look(DTensor.from_local(local, mesh, [Replicate()], **check))
        except Exception as error:
            mine = first_line(error)
        dist.all_gather_object(each, mine)
        found.append(each)
    return found


def _two_by_four() -> Seen:
    grid = init_device_mesh("cpu", (2, 4))
    local = torch.empty(4096, 1024)  # never touched, so it takes no memory
    made = DTensor.from_local(local, grid, [Shard(0), Shard(1)], run_check=False)
    return {"two_by_four_logical": list(made.shape), "two_by_four_local": list(made.to_local().shape)}


def _from_shard(mesh: Any, placements: Any, *shape: int) -> DTensor:
    return DTensor.from_local(torch.ones(shape), mesh, placements, run_check=False)


def _placements() -> Seen:
    mesh = init_device_mesh("cpu", (4,))
    grid = init_device_mesh("cpu", (2, 2))
    rank, whole = dist.get_rank(), torch.arange(1024 * 512.0).reshape(1024, 512)
    sharded = dt.distribute_tensor(whole, mesh, [Shard(0)])
    replicated = dt.distribute_tensor(whole, mesh, [Replicate()])
    passed = DTensor.from_local(whole, mesh, [Shard(0)])
    split: dict[str, Any] = {"own": (mesh, [Shard(0)], 256, 512), "grid": (grid, [Shard(0), Shard(1)], 2, 2)}
    first = {name: _making(functools.partial(_from_shard, *how)) for name, how in split.items()}
    mixed = DTensor.from_local(torch.full((2, 2), float(rank)), grid, [Shard(0), Partial()])
    bare = torch.ops.aten.add.Tensor(sharded, sharded)  # the dispatcher's own entry
    doubled = torch.equal(bare.full_tensor(), whole * 2)
    partial = DTensor.from_local(torch.full((2,), float(rank + 1)), mesh, [Partial()])
    made, made_bytes = _making(lambda: dt.zeros(8, 4, device_mesh=mesh, placements=[Shard(0)]))
    copies, copies_bytes = _making(lambda: dt.zeros(8, 4, device_mesh=mesh, placements=[Replicate()]))
    replicas, shapes = _checked()
    found: Seen = {
        "mine": {
            "shard_local": list(sharded.to_local().shape),
            "shard_mine": torch.equal(sharded.to_local(), whole.chunk(4)[rank]),
            "replicate_local": list(replicated.to_local().shape),
            "replicate_mine": torch.equal(replicated.to_local(), whole),
            "partial_local": partial.to_local()[0].item(),
            **{f"{name}_bytes": nbytes for name, (_, nbytes) in first.items()},
            "zeros": [list(made.to_local().shape), made_bytes],
            "zeros_replicated": [list(copies.to_local().shape), copies_bytes],
        },
        "shard_logical": list(sharded.shape),
        "shard_whole": bool(torch.equal(sharded.full_tensor(), whole)),
        "mixed_whole": mixed.full_tensor().tolist(),
        "bare": [type(bare).__name__, list(bare.to_local().shape), doubled],
        "passed_logical": list(passed.shape),
        "passed_local": list(passed.to_local().shape),
        **{f"{name}_logical": list(one.shape) for name, (one, _) in first.items()},
        "partial_whole": partial.full_tensor()[0].item(),
        "replicas": replicas,
        "shapes": shapes,
        "asked": _checked(run_check=True),
        "skipped": _checked(run_check=False),
        "methods": {
            name: inspect.isfunction(getattr(one, "__func__", one))
            for name, one in vars(DTensor).items()
            if callable(one) or isinstance(one, classmethod | staticmethod)
        },
        "is_tensor_subclass": issubclass(DTensor, torch.Tensor),
    }
    try:
        torch.zeros(8, 4, device_mesh=mesh, placements=[Replicate()])  # type: ignore[call-overload]
        found["torch_zeros"] = ""
    except Exception as error:
        found["torch_zeros"] = first_line(error)
    return found


@judging(placements)
def shard_splits(seen: Seen) -> Result:
    """Shard(0) of 1,024 by 512 over four ranks leaves 256 by 512 on each: its own rows."""
    shapes = seen["shard_local"]
    return verdict(
        shapes == [[256, 512]] * 4 and all(seen["shard_mine"]),
        f"by rank {shapes}, {sum(seen['shard_mine'])} of {len(shapes)} with the rows of their rank",
    )


@judging(placements)
def replicate_copies(seen: Seen) -> Result:
    """Replicate() leaves the whole tensor on every rank."""
    shapes = seen["replicate_local"]
    return verdict(
        shapes == [[1024, 512]] * 4 and all(seen["replicate_mine"]),
        f"by rank {shapes}, {sum(seen['replicate_mine'])} of {len(shapes)} with all rows",
    )


@judging(placements)
def partial_holds_a_summand(seen: Seen) -> Result:
    """With Partial() each rank holds a summand, and the logical value is the sum."""
    return verdict(
        seen["partial_local"] == [1, 2, 3, 4] and seen["partial_whole"] == 10,
        f"the ranks hold {seen['partial_local']}, together {seen['partial_whole']:g}",
    )


@judging(placements)
def from_local_distributes(seen: Seen) -> Result:
    """from_local cuts a whole tensor of 1,024 rows into shards of 256."""
    return verdict(
        seen["passed_local"] == [256, 512] and seen["passed_logical"] == [1024, 512],
        f"from_local takes it for one shard: a rank keeps {seen['passed_local']}, logically {seen['passed_logical']}; "
        "distribute_tensor is what cuts",
    )


@judging(placements)
def local_first(seen: Seen) -> Result:
    """A DTensor can be made of shards that each rank allocates itself, without a global tensor anywhere."""
    return _local_first("own", [256, 512], [1024, 512], seen)


def _local_first(name: str, local: list[int], logical: list[int], seen: Seen) -> Result:
    """Local tensors make one of the logical shape, and no rank allocates more than its local one."""
    found, allocated = seen[f"{name}_logical"], seen[f"{name}_bytes"]
    return verdict(
        found == logical and allocated == [4 * local[0] * local[1]] * 4,
        f"local {local} is logically {found}; the largest tensor that a rank makes has "
        f"{max(allocated)} B, a whole one would have {4 * logical[0] * logical[1]} B",
    )


@judging(placements)
def two_axes_shard_two_dims(seen: Seen) -> Result:
    """On a two by two mesh with [Shard(0), Shard(1)], chunks of 2 by 2 make 4 by 4, and a rank makes only its own."""
    return _local_first("grid", [2, 2], [4, 4], seen)


@judging(placements)
def torch_zeros_takes_a_mesh(seen: Seen) -> Result:
    """torch.zeros takes device_mesh and placements."""
    return verdict(
        not seen["torch_zeros"],
        f"{seen['torch_zeros']}; torch.distributed.tensor.zeros does" if seen["torch_zeros"] else "it does",
    )


@judging(placements)
def dtensor_zeros_allocates_the_shard(seen: Seen) -> Result:
    """torch.distributed.tensor.zeros allocates by placement: a rank's shard alone, or where replicated, the whole."""
    sharded, replicated = seen["zeros"], seen["zeros_replicated"]
    return verdict(
        sharded == [[[2, 4], 32]] * 4 and replicated == [[[8, 4], 128]] * 4,
        "of 8 by 4 floats over four ranks, local shape and B of the largest tensor that rank 0 makes: Shard(0) "
        f"{sharded[0]}, Replicate() {replicated[0]}",
    )


@judging(placements)
def is_a_python_subclass(seen: Seen) -> Result:
    """DTensor is a subclass of Tensor whose methods are Python: all but what makes one, and a switch of Tensor's."""
    methods = seen["methods"]
    built_in = sorted(name for name, in_python in methods.items() if not in_python)
    allowed = {"__new__", "__torch_function__"}  # the second is torch's own constant, as any subclass sets it
    return verdict(
        seen["is_tensor_subclass"]
        and methods.get("__torch_dispatch__", False)
        and allowed.issuperset(built_in),
        f"subclass of Tensor: {seen['is_tensor_subclass']}; {len(methods) - len(built_in)} of {len(methods)} methods "
        f"are written in Python, not {' and '.join(built_in)}",
    )


@judging(placements)
def the_dispatcher_hands_over(seen: Seen) -> Result:
    """An operator that is called at the dispatcher works on DTensors shard by shard, without a hook in Python above."""
    (kind, local, right), above = seen["bare"], seen["methods"].get("__torch_function__", False)
    return verdict(
        kind == "DTensor" and local == [256, 512] and right and not above,
        f"torch.ops.aten.add gives a {kind}, locally {local}, numbers {'right' if right else 'wrong'}; "
        f"{'a' if above else 'no'} __torch_function__ in Python",
    )


@judging(placements)
def logical_and_local(seen: Seen) -> Result:
    """A DTensor has the shape and the values of the whole tensor, while a rank holds a part of them."""
    logical, local, same = seen["shard_logical"], seen["shard_local"][0], seen["shard_whole"]
    return verdict(
        logical == [1024, 512] and local == [256, 512] and all(seen["shard_mine"]) and same,
        f"logically {logical}, on a rank {local}; gathered, it is {'the' if same else 'not the'} whole tensor",
    )


@judging(placements)
def placements_are_per_axis(seen: Seen) -> Result:
    """On a two by two mesh, [Shard(0), Partial()] puts rows along the first axis and summands along the second."""
    rows = [row[0] for row in seen["mixed_whole"]]
    return verdict(
        rows == [1, 1, 5, 5], f"ranks 0 to 3 hold two rows of their number each; whole, the rows are {rows}"
    )


@probe
def dispatching(bench: Bench) -> Seen:
    """Calls of `__torch_dispatch__` in a profile of three operations: on DTensors, and on a subclass in Python."""
    return bench.run(_dispatching)[0]


def _dispatching() -> Seen:
    class InPython(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
            return super().__torch_dispatch__(func, types, args, kwargs or {})

    def operations(x: torch.Tensor) -> None:
        torch.matmul(x, x), x + x, x.relu()

    def calls(x: torch.Tensor) -> int:
        operations(x)  # what only a first use costs is not counted
        profile = cProfile.Profile()
        profile.runcall(operations, x)
        # with the class where the code says to which one it belongs
        names = [getattr(e.code, "co_name", "") for e in profile.getstats() for _ in range(e.callcount)]
        return names.count("__torch_dispatch__")

    x = torch.ones(4, 4)
    with torch.no_grad():
        mesh, local = init_device_mesh("cpu", (2,)), []
        wrapped = distribute_tensor(x, mesh, [Replicate()])

        def below(func: Any, args: Any, kwargs: Any) -> Any:
            if any(isinstance(argument, DTensor) for argument in args):
                return NotImplemented  # on to the operators on what the ranks have
            if func is torch.ops.aten.mm.default:
                local.append([list(matrix.shape) for matrix in args])
            return func(*args, **kwargs)

        whole, split = torch.ones(8, 16), distribute_tensor(torch.ones(16, 32), mesh, [Shard(1)])
        copied = distribute_tensor(whole, mesh, [Replicate()])
        torch.matmul(copied, split)  # the first use works its rule out, with tensors that have no memory
        with around_operators(below):
            product = torch.matmul(copied, split)
        return {
            "operations": 3,
            "dtensor": calls(wrapped),
            "in_python": calls(x.as_subclass(InPython)),
            "local": local,
            "product": [type(product).__name__, list(product.shape)],
        }


@judging(dispatching)
def operations_arrive_in_dispatch(seen: Seen) -> Result:
    """Each operation on DTensors calls DTensor's __torch_dispatch__ in Python, as it does for any such subclass."""
    count, control = seen["dtensor"], seen["in_python"]
    said = f"{seen['operations']} operations: {count} calls of __torch_dispatch__ on DTensors"
    if control < seen["operations"]:
        return cannot_tell("a profile that sees these calls", f"{said}, {control} on a subclass in Python")
    fast = "; torch dispatches DTensors in C++" if not count else ""
    return verdict(
        count >= seen["operations"], f"{said}, {control} on a subclass that is written in Python{fast}"
    )


@judging(dispatching)
def the_local_kernel_runs(seen: Seen) -> Result:
    """A product of DTensors runs the ordinary product on what the rank has, and wraps the result again."""
    made, shape = seen["product"]
    return verdict(
        seen["local"] == [[[8, 16], [16, 16]]] and made == "DTensor" and shape == [8, 32],
        f"aten.mm on local {' and '.join(map(str, seen['local'])) or 'nothing'}, then a {made} of {shape}",
    )


@judging(placements)
def from_local_checks_by_default(seen: Seen) -> Result:
    """from_local notices local shapes that do not fit together by default, and does not with run_check=False."""

    def noticed(each: list[Any]) -> bool:  # by an error, or by making them alike
        return any(isinstance(one, str) for one in each) or all(one == each[0] for one in each)

    default, asked, skipped = (seen["replicas"], seen["shapes"]), seen["asked"], seen["skipped"][1]
    values, shapes = ("noticed" if noticed(each) else each for each in default)
    return verdict(
        noticed(default[1]) and not noticed(skipped),
        f"replicas that differ between ranks, taken by default: values {values}; shapes {shapes}; noticed with "
        f"run_check=True: {sum(map(noticed, asked))} of {len(asked)}, with run_check=False shapes "
        f"{'are' if noticed(skipped) else 'not'}",
    )


@judging(placements)
def two_by_four(seen: Seen) -> Result:
    """On a two by four mesh with [Shard(0), Shard(1)], local 4096 by 1024 is logically 8192 by 4096."""
    return verdict(
        seen["two_by_four_logical"] == [8192, 4096] and seen["two_by_four_local"] == [4096, 1024],
        f"local {seen['two_by_four_local']}, logically {seen['two_by_four_logical']}",
    )
