"""Right answers to the exercises of lesson 11, of other approaches than the notebook's."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group


def by_members(group):
    """Finds the group of each name, and compares it."""

    def backend(graph, inputs):
        for part in graph.modules():
            for node in getattr(getattr(part, "graph", None), "nodes", ()):
                target = node.target
                if not isinstance(target, torch._ops.OpOverloadPacket | torch._ops.OpOverload):
                    continue
                packet = getattr(target, "overloadpacket", target)
                schema = getattr(packet, packet.overloads()[0])._schema
                names = [argument.name for argument in schema.arguments]
                for name, value in (dict(zip(names, node.args, strict=False)) | node.kwargs).items():
                    if name == "group_name" and _resolve_process_group(value) is not group:
                        raise ValueError(value)
        return graph

    return backend


def by_the_code(group):
    """Reads the generated code of all graphs, and lets Inductor's front end run what is right."""

    def backend(graph, inputs):
        names = {f"'{name}'" for name in (g.group_name for g in dist.distributed_c10d._world.pg_names)}
        for part in graph.modules():
            for line in getattr(part, "code", "").splitlines():
                others = {name for name in names if name in line} - {f"'{group.group_name}'"}
                if "_c10d_functional" in line and others:
                    raise PermissionError(line)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    return backend


def other_ranks():
    return {
        "A": (3, "another group in the graph", 'mesh["tp"].get_group()'),
        "B": ((0, 3), "groups in another order", "one order on all ranks"),
        "C": (range(4), "input by the wrong number", 'mesh["dp"].get_local_rank()'),
        "D": [{0, 1, 2, 3}, "another size in the graph", 'mesh["dp"].size()'],
    }


RIGHT = {"mesh.fence": (by_members, by_the_code), "mesh.jobs": (other_ranks,)}
