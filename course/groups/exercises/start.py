"""Lesson 01, `groups.start`: the log and the store's keys of a job that does not start, read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["MATERIAL", "start"]

# errors and keys of a run with torch 2.13 on one CPU machine; the launcher's lines are written by hand
MATERIAL = """\
$ cat job.sh
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
export MASTER_ADDR=$(scontrol show hostnames | head -1) MASTER_PORT=29500
srun --label bash -c 'WORLD_SIZE=$SLURM_NTASKS RANK=$((SLURM_NODEID + SLURM_LOCALID)) python train.py'

$ grep DistStoreError job.log    # srun --label: the number in front is SLURM_PROCID
0: torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /default_pg/0//cpu//0/3
1: torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /default_pg/0//cpu//0/3
2: torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /default_pg/0//cpu//0/3
3: torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /default_pg/0//cpu//0/3

>>> sorted(store.list_keys())    # five seconds after the start
['default_pg/0//cpu//0/0', 'default_pg/0//cpu//0/1', 'default_pg/0//cpu//0/2']
"""
MISSING, TWICE = 3, 1
LAYOUTS = ((2, 2), (2, 4), (3, 2))  # nodes, and tasks on each


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The missing rank, the rank that two processes have, and a rank of its own for each process of any layout."""
    hint = "it is called as my_diagnosis(env), and returns a dict with the keys missing, twice and rank"
    found = on_ranks(ranks, _answers, attempt, only=0, hint=hint)[0]
    wanted = {"missing", "twice", "rank"}
    for answer in found[LAYOUTS[0]]:
        if not isinstance(answer, dict) or not wanted <= set(answer):
            raise Mistake(
                f"it returns {answer!r}",
                "return a dict with the keys missing, twice and rank for each process",
            )
    said = found[LAYOUTS[0]][0]
    if said["missing"] != MISSING:
        raise Mistake(
            f"missing: {said['missing']!r}", "a key ends in its rank: which rank's key is not in the list?"
        )
    if said["twice"] != TWICE:
        raise Mistake(
            f"missing: {MISSING}; twice: {said['twice']!r}",
            "four processes wrote three keys: work out RANK for each of the four from the line with srun",
        )
    say(f"rank {MISSING} is missing, because two processes are rank {TWICE}")
    for (nodes, tasks), answers in found.items():
        given = [answer["rank"] for answer in answers]
        finding = f"{nodes} nodes with {tasks} tasks each: ranks {given}"
        if any(type(rank) is not int for rank in given):
            raise Mistake(finding, "a rank is a whole number, and a variable of the environment is a string")
        if sorted(given) != list(range(nodes * tasks)):
            raise Mistake(finding, _why(given, (nodes, tasks)))
        say(finding)


def _why(given: list[int], layout: tuple[int, int]) -> str:
    if layout == LAYOUTS[0]:
        return "still two processes get one rank, or a rank is out of range: it has to count over both nodes"
    return (
        "it is right for two tasks on each node: use the number of tasks on a node, or the number in the job"
    )


def _answers(attempt: Attempt) -> dict[tuple[int, int], list[Any]]:
    return {
        (nodes, tasks): [attempt(_environment(nodes, tasks, number)) for number in range(nodes * tasks)]
        for nodes, tasks in LAYOUTS
    }


def _environment(nodes: int, tasks: int, number: int) -> dict[str, str]:
    """What srun sets for a task of a job that is laid out node by node."""
    node, local = divmod(number, tasks)
    values = {"PROCID": number, "NODEID": node, "LOCALID": local, "NTASKS": nodes * tasks, "NNODES": nodes}
    return {f"SLURM_{name}": str(value) for name, value in (values | {"NTASKS_PER_NODE": tasks}).items()}


start = Exercise(
    "groups.start",
    "a job that does not start",
    "medium",
    10,
    (
        "the rank that is missing",
        "the rank that two processes have",
        "a rank of its own for every process, for any number of nodes and of tasks on each",
    ),
    judge,
)
