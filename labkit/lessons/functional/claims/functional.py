"""What functional collectives ask for: no process group to be traced, any kind of group to run, and the dispatcher."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.fx.experimental.proxy_tensor import make_fx

from labkit.lessons.shared.capture import first_line
from labkit.ranks import Ranks
from labkit.study.checks import READ, Bench, Result, Seen, cannot_tell, judging, probe, quietly, verdict
from labkit.torch_compat import compile_backend, dynamo_reset, funcol, functional_op, has_kernel, world_name

OPERATORS = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "broadcast",
    "wait_tensor",
)


@probe
def without_a_group(bench: Bench) -> Seen:
    """Functional operators traced and compiled in a process that has destroyed its process group."""
    with Ranks(1, "cpu", "gloo", quiet=True) as ranks:  # of its own: it is without a group afterwards
        return ranks.run(quietly, _without_a_group)[0]


def _without_a_group() -> Seen:
    dist.destroy_process_group()
    size = 8
    names = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
    reduce, gather, scatter = (functional_op(name) for name in names)
    made = (
        lambda x: reduce(x, "sum", "tp"),
        lambda x: gather(x, size, "tp"),
        lambda x: scatter(x, "sum", size, "tp"),
    )
    programs: dict[str, Any] = dict(zip(names, made, strict=True))
    found: Seen = {"initialized": dist.is_initialized(), "shapes": {}, "errors": {}}
    for name, program in programs.items():
        try:
            graph = make_fx(_waited(program), None, "fake")(torch.ones(size))
            last = [node for node in graph.graph.nodes if node.op == "call_function"][-1]
            found["shapes"][name] = list(last.meta["val"].shape)
        except Exception as error:
            found["errors"][name] = first_line(error)
    return found | {
        "compiled": {
            name: _compiles(_waited(programs["all_reduce"]), name) for name in ("aot_eager", "inductor")
        }
    }


def _compiles(program: Any, by: str) -> str:
    """The error of a compiler without a group; '' where it ended. Running what it made is another matter."""
    dynamo_reset()
    compiler, ended = compile_backend(by), list[bool]()

    def backend(graph: Any, inputs: Any) -> Any:
        run = compiler(graph, inputs)
        ended.append(True)
        return run

    try:
        with torch.no_grad():
            torch.compile(program, backend=backend, fullgraph=True)(torch.ones(8))
    except Exception as error:
        return "" if ended else first_line(error)
    return ""


def _waited(program: Any) -> Any:
    wait = functional_op("wait_tensor")
    return lambda x: wait(program(x))


@judging(without_a_group)
def traced_and_compiled_without_a_group(seen: Seen) -> Result:
    """Where no process group exists functional collectives are traced, with the shapes of eight ranks, and compiled."""
    right = {"all_reduce": [8], "all_gather_into_tensor": [64], "reduce_scatter_tensor": [1]}
    said = ", ".join(f"{name} {shape}" for name, shape in seen["shapes"].items())
    ends = [
        *seen["errors"].items(),
        *((f"compiled by {by}", why or "yes") for by, why in seen["compiled"].items()),
    ]
    said = "; ".join([said or "nothing was traced", *(f"{name}: {why}" for name, why in ends)])
    traced = not seen["initialized"] and seen["shapes"] == right
    why = [*seen["errors"].values(), *seen["compiled"].values()]
    if other := [error for error in why if error and "process group" not in error.lower()]:
        return cannot_tell("a compiler that fails for want of a group, if at all", other[0])
    return verdict(traced and not any(seen["compiled"].values()), f"without a group: {said}")


@probe
def frontends(bench: Bench) -> Seen:
    """One functional all-reduce of 1 and 2, with its group named in each way that there is, and a DTensor's."""
    return bench.run(_frontends)[0]


def _frontends() -> Seen:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = torch.ones(2) * (dist.get_rank() + 1)
    groups = {
        "ProcessGroup": dist.group.WORLD,
        "name": world_name(),
        "list of ranks": list(range(dist.get_world_size())),
        "DeviceMesh": mesh,
        "mesh and dimension": (mesh, 0),
    }
    found: Seen = {"sums": {}, "errors": {}}
    for name, group in groups.items():
        try:
            found["sums"][name] = funcol.all_reduce(x, "sum", group).tolist()
        except Exception as error:
            found["errors"][name] = first_line(error)
    with CommDebugMode() as counted:
        whole = DTensor.from_local(x, mesh, [Partial()]).redistribute(mesh, [Replicate()])
        found["sums"]["DTensor"] = whole.to_local().tolist()
    return found | {"of_dtensor": {str(kind): count for kind, count in counted.get_comm_counts().items()}}


@judging(frontends)
def many_frontends(seen: Seen) -> Result:
    """A functional sum takes its group as a ProcessGroup, name, ranks or mesh, and a DTensor's is a functional one."""
    right = [name for name, value in seen["sums"].items() if value == [3.0, 3.0]]
    said = "; ".join(
        [f"right with {', '.join(right) or 'none'}", *(f"{n}: {e}" for n, e in seen["errors"].items())]
    )
    below = seen["of_dtensor"]
    return verdict(
        not seen["errors"]
        and len(right) == len(seen["sums"]) == 6
        and list(below) == ["c10d_functional.all_reduce"],
        f"{said}; below the DTensor: {', '.join(below) or 'none'}",
    )


@probe
def operators(bench: Bench) -> Seen:
    """The functional operators as the dispatcher knows them: argument types, what they return, who computes them."""
    return bench.run(_operators, ranks=1)[0]


def _operators() -> Seen:
    found: Seen = {}
    for name in OPERATORS:
        schema = functional_op(name).default._schema
        found[name] = {
            "arguments": [str(argument.type) for argument in schema.arguments],
            "names": [argument.name for argument in schema.arguments],
            "returns": [str(value.type) for value in schema.returns],
            "kernel": has_kernel(f"_c10d_functional::{name}", "CompositeExplicitAutograd"),
            "mutates": schema.is_mutable,
        }
    return found


@judging(operators)
def registered_with_the_dispatcher(seen: Seen) -> Result:
    """Functional collectives are operators of the dispatcher: a kernel, a schema without mutation, a tensor back."""
    tidy = [
        name
        for name in OPERATORS
        if seen[name]["kernel"] and not seen[name]["mutates"] and seen[name]["returns"] == ["Tensor"]
    ]
    types = sorted({kind for name in OPERATORS for kind in seen[name]["arguments"]})
    return verdict(
        len(tidy) == len(OPERATORS),
        f"{len(tidy)} of {len(OPERATORS)} registered so; argument types: {', '.join(types)}",
    )


@judging(operators)
def no_stream_in_a_schema(seen: Seen) -> Result:
    """No functional operator takes or returns a stream or an event, nor a number that is called so."""
    types = sorted(
        {kind for name in OPERATORS for kind in (*seen[name]["arguments"], *seen[name]["returns"])}
    )
    words = {*types, *(word for name in OPERATORS for word in seen[name]["names"])}
    named = sorted(word for word in words if "stream" in word.lower() or "event" in word.lower())
    return verdict(
        bool(types) and not named,
        f"types in {len(OPERATORS)} schemas: {', '.join(types)}; streams by type or by name: {named or 'none'}",
    )


@probe
def source(bench: Bench) -> Seen:
    """The name of the file that implements functional collectives, and what is defined at its top."""
    body = ast.parse(inspect.getsource(funcol)).body
    defined = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return {"file": Path(inspect.getfile(funcol)).name, "defined": defined}


@judging(source, word=READ)
def the_source_is_one_file(seen: Seen) -> Result:
    """The collectives, the wait and the tensor that waits are defined in the file that the source names."""
    names = ("all_reduce", "wait_tensor", "AsyncCollectiveTensor")
    there = [name for name in names if name in seen["defined"]]
    return verdict(
        seen["file"] == "_functional_collectives.py" and len(there) == len(names),
        f"{seen['file']} defines {', '.join(there) or 'none of them'}, and {len(seen['defined']) - len(there)} more",
    )
