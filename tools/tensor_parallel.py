"""Make what lesson 10 shows from files: the type errors of spmd_types, and the gradients of three jobs on four ranks.

python -m tools.tensor_parallel          # the jobs
python -m tools.tensor_parallel types    # needs the package spmd_types
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh

from labkit import files, lessons
from labkit.ranks import Ranks
from labkit.torch_compat import funcol

SIZES = 48, 2, 12


def types() -> dict[str, Any]:
    """What spmd_types says of each fault in the lesson's MLP."""
    program = lessons.program("dtensor")
    with Ranks(2, device="cpu", backend="fake", quiet=True) as fake:
        answers = {fault: fake.run(program.typed, fault, ranks=0)[0] for fault in program.FAULTS}
    made = f"spmd_types {version('spmd_types')}, torch {torch.__version__.partition('+')[0]}"
    return {"made with": made, "answers": answers}


def jobs() -> dict[str, dict[str, dict[str, Any]]]:
    """Of each job: gradients of four ranks over those of one process."""
    program = lessons.program("dtensor")
    whole, x = program.model(*SIZES[:2]), program.sample(SIZES[0], SIZES[2])
    whole(x).square().mean().backward()
    found = {}
    with Ranks(4, device="cpu", backend="gloo", quiet=True) as four:
        for job, run in (("A", without_f), ("B", without_sums), ("C", dp_on_the_first)):
            per_rank, rows = list(four.run(run).values()), {}
            for name, p in whole.named_parameters():
                parts = [gradients[name] for gradients in per_rank]
                cut, size = program.CUT.get(name.split(".")[1]), 2 if job == "C" else 4
                pieces = [p.grad] if cut is None else p.grad.chunk(size, cut)
                row = {f"rank {r}": program.multiple(t, pieces[r % len(pieces)]) for r, t in enumerate(parts)}
                row["sum"] = "-" if cut is not None else program.multiple(torch.stack(parts).sum(0), p.grad)
                rows[name] = {column: "other" if k is None else k for column, k in row.items()}
            found[job] = rows
    return found


def _gradients(mine: Any) -> dict[str, Any]:
    return {name: p.grad + 0 for name, p in mine.named_parameters()}


def without_f() -> dict[str, Any]:
    """Job A, on a rank: no f at the second block's attention."""
    program = lessons.program("dtensor")
    mesh = init_device_mesh("cpu", (4,))
    mine = program.split(program.model(*SIZES[:2]), mesh, program.placed_pair)
    block = mine[1]
    # `enter` is called for attention and then for the MLP: the first call gets nothing
    calls, f = [], block.enter
    block.enter = lambda x: f(x) if calls.append(0) or len(calls) > 1 else x
    mine(program.sample(SIZES[0], SIZES[2])).square().mean().backward()
    return _gradients(mine)


def without_sums() -> dict[str, Any]:
    """Job B, on a rank: split tokens, and the norms' gradients are not added up."""
    program = lessons.program("dtensor")
    mesh = init_device_mesh("cpu", (4,))

    def pair(mesh: Any) -> Any:
        group = mesh.get_group()
        return (
            lambda x: funcol.all_gather_tensor(x, 1, group),
            lambda y: funcol.reduce_scatter_tensor(y, "sum", 1, group),
        )

    mine = program.split(program.model(*SIZES[:2]), mesh, pair)
    x = program.sample(SIZES[0], SIZES[2])
    y = mine(x.chunk(4, 1)[mesh.get_local_rank()])
    (y.square().sum() / x.numel()).backward()
    return _gradients(mine)


def dp_on_the_first() -> dict[str, Any]:
    """Job C, on a rank: only the first rank of each copy takes the mean of gradients over dp."""
    program = lessons.program("dtensor")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    mine = program.split(program.model(*SIZES[:2]), mesh["tp"], program.placed_pair)
    x = program.sample(SIZES[0], SIZES[2]).chunk(2)[mesh["dp"].get_local_rank()]
    mine(x).square().mean().backward()
    found = _gradients(mine)
    if mesh["tp"].get_local_rank() == 0:
        found = {n: funcol.all_reduce(t, "sum", mesh["dp"].get_group()) / 2 + 0 for n, t in found.items()}
    return found


if __name__ == "__main__":
    name, make = ("spmd_types", types) if sys.argv[1:] == ["types"] else ("tensor_parallel_jobs", jobs)
    path = files.ours("data/captured") / f"{name}.json"
    path.write_text(json.dumps(make(), indent=1) + "\n")
