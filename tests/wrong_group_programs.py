"""Small programs of three ranks, of which 1 and 2 are a mesh: one is right, the others ask another group."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from course.shared.contract import Domain, Exchange


def members(body):
    """Run `body(mesh, x)` inside the mesh, on its members only; they meet again at the end, where they can."""

    @functools.wraps(body)
    def program():
        mesh = Domain.define(Exchange.connect("test-domain"), "mesh", [1, 2])
        others = dist.new_group([0, 1, 2]), dist.new_group([0, 1])
        if not mesh.member:
            return "outside"
        with torch.no_grad(), mesh.inside():
            return body(mesh, torch.ones(2) * mesh.rank, others)

    return program


@members
def right(mesh, x, others):
    run = torch.compile(lambda x: funcol.all_reduce(x * 2, "sum", mesh.group), backend=mesh.backend("eager"))
    y = run(x) + 0
    dist.barrier(group=mesh.group)
    if mesh.rank == 1:
        dist.send(y, 2)
    else:
        dist.recv(torch.empty(2), 1)
    return [*y.tolist(), dist.get_world_size(mesh.group)]


@members
def compiled(mesh, x, others):
    run = torch.compile(
        lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD), backend=mesh.backend("eager")
    )
    return run(x) + 0


@members
def compiled_in_place(mesh, x, others):
    run = torch.compile(lambda x: dist.all_reduce(x) or x + 1, backend=mesh.backend("eager"))
    return run(x)


@members
def another_group(mesh, x, others):
    run = torch.compile(lambda x: funcol.all_reduce(x, "sum", others[0]), backend=mesh.backend("eager"))
    return run(x) + 0


@members
def barrier(mesh, x, others):
    dist.barrier()


@members
def at_a_break(mesh, x, others):
    def program(x):
        y = x * 2
        dist.broadcast(y, 1)
        return y + 1

    return torch.compile(program, backend=mesh.backend("eager"))(x)


@members
def objects(mesh, x, others):
    dist.all_gather_object([None] * 3, "mine")


@members
def world_size(mesh, x, others):
    return x / dist.get_world_size()


@members
def not_in_it(mesh, x, others):
    if mesh.rank == 2:
        dist.all_reduce(x, group=others[1])


def fence_is_gone():
    mesh = Domain.define(Exchange.connect("test-gone"), "mesh", [1, 2])
    if mesh.member:
        for _ in range(2):
            try:
                with mesh.inside():
                    raise KeyError
            except KeyError:
                pass
    dist.barrier()
    return float(dist.get_world_size()) if mesh.member else "outside"


PROGRAMS = {
    f.__name__: f
    for f in (
        *(right, compiled, compiled_in_place, another_group, barrier, at_a_break, objects, world_size),
        *(not_in_it, fence_is_gone),
    )
}
