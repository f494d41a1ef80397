"""Right answers to the exercises of lesson 08 in other words than those of the solutions."""

from __future__ import annotations

import pickle
import re
from itertools import zip_longest

import numpy as np

from course.symmetry.exercises import JOB, LAYERS, line_of


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


def nodes_of_calls(code):
    """Of Inductor's code, the collectives in order: the Dynamo node that each comes from."""
    lines = [line for line in code.splitlines() if "wait_tensor" not in line]
    calls = [
        i for i, line in enumerate(lines) if "torch.ops._c10d_functional" in line and "assert_" not in line
    ]
    nodes = [re.search(r"Source Nodes: \[([\w, ]+)\]", lines[i - 1]) for i in calls]
    return [node[1].split(", ")[-1] for node in nodes]


def output(job, rank):
    """What a rank of a job logged as its output code."""
    return LAYERS.read_text().split(f"######## job {job}, rank {rank}:")[1].split("########")[0]


def by_reading_the_log():
    found = {}
    for job in "ABC":
        logs = [output(job, rank) for rank in (0, 1)]
        first, second = map(nodes_of_calls, logs)
        unlike = [i for i, (a, b) in enumerate(zip_longest(first, second)) if a != b]
        trains = ["_forward'" in log for log in logs]
        cause = "bucketing on one rank" if trains[0] == trains[1] else "gradients on one rank"
        found[job] = [unlike[0] + 1, first[unlike[0]], second[unlike[0]], cause] if unlike else None
    return found


def in_other_letters():
    answer = {job: of and (np.int64(of[0]), f"%{of[1]}", *of[2:]) for job, of in by_reading_the_log().items()}
    return {job: of and (*of[:3], of[3].upper()) for job, of in answer.items()}


def in_the_brackets_of_the_log():
    return {
        job: of and (of[0], f"[{of[1]}]", f"[{of[2]}]", of[3]) for job, of in by_reading_the_log().items()
    }


RIGHT = {
    "symmetry.dumps": [by_program, in_numpy],
    "symmetry.compiled": [by_reading_the_log, in_other_letters, in_the_brackets_of_the_log],
}
