"""One rank sees another shape: what happens, and what guard collectives and compiler collectives do about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from labkit.experiments.options import on_cpu, two_or_more
from labkit.experiments.registry import EXPERIMENTS
from labkit.ranks import RankError, Ranks
from labkit.report import Report, provenance

ABOUT = EXPERIMENTS["odd_shape"]
SAME, FIRST, LATER = "no rank", "from the first call", "from the second call"
WHEN = (FIRST, LATER)
HELP = ("none", "guard collectives", "compiler collectives", "compiler collectives, repaired")
PATIENCE_S, SLOW_S = 1.0, 2.0  # of a collective, and of rank 1's second compile
LENGTHS = {SAME: (4, 4, 4), FIRST: (6, 6, 6), LATER: (4, 6, 8)}  # of the last rank; the others always have 4


def run(
    ranks: Ranks,
    help: Sequence[str] = HELP,
    *,
    timeout: float = 60.0,
    stall: float = 4.0,
    talk: bool = False,
) -> Report:
    """Three calls in step of a compiled function with an all-reduce, where the last rank's input is longer.

    Its length differs from the first call on, or from the second, so that it compiles again and its peers do not; that
    compile takes longer than the collective's patience, as a large model's does. help: what is switched on. `outcomes`
    has a row for each: how it ended ('right', 'wrong', 'error', 'hung'), and by rank the graphs that were compiled.

    Runs on ranks like `ranks`, because a group that timed out is good for nothing. Raises ValueError for a help that
    does not exist, before any rank is started.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = run(ranks, ["none"])
    >>> report.frame[["differs", "outcome"]].to_dict("split")["data"]
    [['no rank', 'right'], ['from the first call', 'right'], ['from the second call', 'error']]
    """
    import pandas as pd

    for name in help:
        if name not in HELP:
            raise ValueError(f"unknown help {name!r}: there is {', '.join(HELP)}")
    on_cpu(ranks)
    two_or_more(ranks)
    rows = []
    with Ranks(
        ranks.world_size, ranks.device, ranks.backend, timeout=timeout, stall=stall, quiet=True, live=False
    ) as own:
        for when in (SAME, *WHEN):
            for name in help if when != SAME else help[:1]:
                rows.append({"differs": when, "help": name, **_attempt(own, when, name)})
                if talk:
                    print(f"{when}, {name}: {rows[-1]['outcome']}", flush=True)
    settings = provenance(backend=ranks.backend, device=ranks.device, world_size=ranks.world_size)
    notes = [f"{r['differs']}, {r['help']}: {r['outcome']}" for r in rows]
    view = "labkit.views.odd_shape:figure"
    return Report(
        "odd_shape", ABOUT.title, ranks.label, {"outcomes": pd.DataFrame(rows)}, [], settings, notes, view
    )


def _attempt(ranks: Ranks, when: str, name: str) -> dict[str, Any]:
    from labkit.experiments.divergence import judge

    began = time.perf_counter()
    row: dict[str, Any] = {"outcome": "right", "graphs by rank": "-", "dynamic by rank": "-", "said": ""}
    try:
        found = list(ranks.run(_play, when, name))
        row |= {
            "outcome": "right" if all(one["right"] for one in found) else "wrong",
            "graphs by rank": " / ".join(str(one["graphs"]) for one in found),
            "dynamic by rank": " / ".join("yes" if one["dynamic"] else "no" for one in found),
        }
    except RankError as error:
        outcome, said = judge(error)
        row |= {"outcome": outcome, "said": said[:160]}
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def _play(when: str, name: str) -> dict[str, Any]:
    """On a rank: the calls, and what was compiled for them."""
    from contextlib import nullcontext
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from labkit.experiments.harness import quiet_stderr
    from labkit.torch_compat import (
        compiler_collectives_on_cpu,
        compiling_together,
        dynamo_reset,
        funcol,
        symbolic,
    )

    dynamo_reset()
    group = dist.new_group(timeout=timedelta(seconds=PATIENCE_S))
    made: list[bool] = []
    odd = dist.get_rank() == dist.get_world_size() - 1

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        if made:
            time.sleep(SLOW_S)
        made.append(symbolic(graph))
        return graph.forward

    def program(x):  # type: ignore[no-untyped-def]
        return funcol.all_reduce(x.mean(0), "sum", group)  # ones, however long the input is

    compiled, right = torch.compile(program, backend=backend), True
    repaired = name.endswith("repaired")
    together = compiling_together(name.startswith("guard"), name.startswith("compiler"))
    with (
        quiet_stderr(),
        compiler_collectives_on_cpu() if repaired else nullcontext(),
        together,
        torch.no_grad(),
    ):
        for length in LENGTHS[when] if odd else LENGTHS[SAME]:
            dist.barrier()
            y = compiled(torch.ones(length, 4)) + 0
            right &= bool((y == dist.get_world_size()).all())
    return {"right": right, "graphs": len(made), "dynamic": any(made)}
