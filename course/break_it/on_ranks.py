"""Tests of the suite on the ranks of a notebook: how each rank ended, and the three runs of one test as a table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
from oddrank.places import rewrite
from oddrank.record.payloads import without_addresses

from course.break_it import suite
from course.shared import contract
from labkit.pace import patience
from labkit.ranks import RankError, Ranks, here
from labkit.torch_compat import dynamo_reset, settings_kept

__all__ = ["ends", "three"]

STALL_S, TIMEOUT_S = 2.0, 120.0


def ends(ranks: Ranks, play: Callable[..., Any], *args: Any, stall: float = 20.0) -> list[Any]:
    """Call `play(job, *args)` on every rank.

    Args:
        ranks: the ranks.
        play: it gets the suite's Job of its rank.
        args: further arguments.
        stall: seconds after which ranks that wait for each other are ended.

    Returns:
        The suite's End of each rank, by rank. Of a rank that ended while another waited, only that it ended.
    """
    try:
        return list(ranks.run(_end, play, args, stall=stall, timeout=patience(TIMEOUT_S)).values())
    except RankError as error:
        return [_told(outcome) for outcome in sorted(error.outcomes, key=lambda o: o.rank)]


def _end(play: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    dynamo_reset()
    me = here()
    exchange = contract.Exchange.connect("break_it", timeout=patience(TIMEOUT_S))
    job = suite.Job(me.rank, me.world_size, None, exchange, str(me.device))
    with settings_kept():
        return suite.ending(functools.partial(play, job, *args))


def _told(outcome: Any) -> Any:
    if outcome.kind == "unfinished":
        return suite.End("waited", said=f"waits in {outcome.waits or 'Python'}")
    if outcome.kind == "dead":
        return suite.End("exited", said=outcome.message, code=outcome.code or 0)
    if outcome.kind == "error":
        return suite.End("raised", said=f"{outcome.type}: {outcome.message}")
    return suite.End("returned", said="ended")


def three(ranks: Ranks, body: Callable[[Any, bool, bool], Any]) -> pd.DataFrame:
    """Run a test of the suite three times, as the cell defines it.

    Args:
        ranks: two ranks or more.
        body: a function of (job, fault, defended) whose name is that of a test of the suite.

    Returns:
        A row for each run: whether it ended as it has to, how, and what each rank said.

    Raises:
        ValueError: the suite has no test of this name.
    """
    name = body.__name__.replace("_", "-")
    if name not in suite.TESTS:
        raise ValueError(f"the suite has no test {name!r}: there is {', '.join(suite.TESTS)}")
    test, rows = replace(suite.TESTS[name], body=body), []
    for run, (fault, defended) in suite.RUNS.items():
        found = ends(ranks, body, fault, defended, stall=20.0 if defended else STALL_S)
        said = {
            f"rank {rank}": rewrite(without_addresses(end.said or str(end.value)))
            for rank, end in enumerate(found)
        }
        rows.append({"run": run, "how": suite.judge(test, run, found)["how"], **said})
    return pd.DataFrame(rows).set_index("run")
