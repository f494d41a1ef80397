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
FIRST_NODE = (
    "MASTER_ADDR is the first host, and rank 0 serves the store: rank 0 has to run there, where SLURM_NODEID is 0, not "
    "on another node"
)
LAYOUTS = ((2, 2), (2, 4), (3, 2))  # nodes, and tasks on each


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The missing rank, the rank that two processes have, and a rank of its own for each process of any layout."""
    names = ", ".join(_environment(2, 2, 0))
    hint = (
        "it is called as my_diagnosis(env), and returns a dict with the keys missing, twice and rank; all values of "
        f"env are strings: {names}"
    )
    found = on_ranks(ranks, _answers, attempt, only=0, hint=hint)[0]
    wanted = {"missing", "twice", "rank"}
    for answer in found[LAYOUTS[0]]:
        if not isinstance(answer, dict) or not wanted <= set(answer):
            raise Mistake(
                f"it returns {answer!r}",
                "return a dict with the keys missing, twice and rank for each process",
            )
    said = found[LAYOUTS[0]][0]
    for name in ("missing", "twice"):
        if type(said[name]) is not int:
            raise Mistake(f"{name}: {said[name]!r}", f"{name} is one rank: return it as an int")
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
        if given.index(0) >= tasks:
            raise Mistake(finding, FIRST_NODE)
        in_a_row = given == list(range(nodes * tasks))
        say(finding if in_a_row else f"{finding}; it starts, but ranks of one node do not follow each other")


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
    values |= {"NTASKS_PER_NODE": tasks}
    first = node * tasks
    words = {
        "TASKS_PER_NODE": f"{tasks}(x{nodes})",
        "GTIDS": ",".join(str(one) for one in range(first, first + tasks)),
    }
    return {f"SLURM_{name}": str(value) for name, value in (values | words).items()}


start = Exercise(
    "groups.start",
    "a job that does not start",
    "medium",
    10,
    (
        "the rank that is missing",
        "the rank that two processes have",
        "a rank for every process, each once, 0 on the first node, in jobs of other sizes too",
    ),
    judge,
)
