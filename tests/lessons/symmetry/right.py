"""Right answers to the exercises of lesson 08 in other words than those of the solutions."""

from __future__ import annotations

import pickle
from itertools import zip_longest

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from course.symmetry.exercises import JOB, line_of


def _first_other(run):
    """The rank and the number of the first collective that one rank alone does not make."""
    ranks = range(4)
    entries = [pickle.loads((JOB.parent / run / f"trace_{rank}").read_bytes())["entries"] for rank in ranks]
    calls = [
        [(e["collective_seq_id"], e["profiling_name"], str(e["input_sizes"])) for e in one] for one in entries
    ]
    for row in zip_longest(*calls):
        for rank in ranks:
            if row.count(row[rank]) == 1:
                return {"rank": rank, "collective": next(call for call in row if call)[0]}
    raise AssertionError(f"the ranks of {run} made the same calls")


def by_program():
    lines = {"a": "if loss.item() > 20 * best:", "b": "self.ready.acquire()"}
    return {run: {**_first_other(run), "line": line_of(words)} for run, words in lines.items()}


def in_numpy():
    return {
        run: {name: np.int64(value) for name, value in found.items()} for run, found in by_program().items()
    }


def by_a_mask(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return total * (total.sum() > 0).to(total.dtype)


def by_a_gather(x):
    parts = funcol.all_gather_tensor(x[None], 0, dist.group.WORLD)
    total = parts.sum(0)
    return torch.where(total.sum() > 0, total, 0.0)


def by_a_cond(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return torch.cond(total.sum() > 0, torch.clone, torch.zeros_like, (total,))


def in_one_message(x):
    total = funcol.all_reduce(torch.cat([x, x.sum()[None]]), "sum", dist.group.WORLD)
    return torch.where(total[-1] > 0, total[:-1], 0.0)


RIGHT = {
    "symmetry.dumps": [by_program, in_numpy],
    "symmetry.repair": [by_a_mask, by_a_gather, by_a_cond, in_one_message],
}
