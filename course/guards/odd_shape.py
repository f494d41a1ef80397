"""One rank sees another shape: what happens, and what guard collectives and compiler collectives do about it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pandas as pd

from course.guards.declared import ODD_SHAPE as ABOUT
from course.shared.options import chosen
from course.shared.outcomes import judge
from course.shared.program import choose as choose_program
from labkit.experiments.options import on_cpu, two_or_more
from labkit.ranks import RankError, Ranks
from labkit.report import Report, provenance
from labkit.torch_compat import compiler_collectives_on_cpu, compiling_together

SAME, FIRST, LATER = "no rank", "from the first call", "from the second call"
CONTROL = "from the second call, default timeout"
STALL_S = 4.0  # that all ranks may wait for each other until it counts as a hang
HELP = ("none", "guard collectives", "compiler collectives", "compiler collectives, repaired")
# of the last rank; the others have 4
LENGTHS = {SAME: (4, 4, 4), FIRST: (6, 6, 6), LATER: (4, 6, 8), CONTROL: (4, 6, 8)}


def run(
    ranks: Ranks,
    help: Sequence[str] = HELP,
    *,
    sleep_s: float = 2.0,
    timeout_s: float = 1.0,
    program: Any = None,
    talk: bool = False,
) -> Report:
    """Three calls in step of a compiled function with an all-reduce, where the last rank's input is longer.

    Its length differs from the first call on, or from the second, so that it compiles again and its peers do not. Two
    numbers are arranged: every compile after the first sleeps for `sleep_s`, as a large model's takes long, and the
    group's collectives give up after `timeout_s`. The control is the second case at torch's default timeout.

    Args:
        ranks: the experiment runs on ranks like these, because a group that timed out is good for nothing.
        help: what is switched on, names of HELP.
        sleep_s: seconds that every compile after the first sleeps.
        timeout_s: seconds until a collective gives up, but for the control.
        program: the cells of lesson 09, as a module or a mapping such as a notebook's `globals()`; None is the lesson's
            own.
        talk: print each outcome.

    Returns:
        A report. `outcomes` has a row for each case and help: how it ended ('right', 'wrong', 'error', 'hung'), the
        graphs that each rank compiled, and the `sleep_s` and `timeout_s` that were arranged (none where the timeout
        is torch's default).

    Raises:
        ValueError: a help that does not exist, or a number that is not above 0, before any rank is started.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = run(ranks, ["none"])
    >>> report.frame[["differs", "outcome"]].to_dict("split")["data"]  # doctest: +NORMALIZE_WHITESPACE
    [['no rank', 'right'], ['from the first call', 'right'], ['from the second call', 'error'],
     ['from the second call, default timeout', 'right']]
    """
    help = chosen(help, HELP, "help")
    for name, value in {"sleep_s": sleep_s, "timeout_s": timeout_s}.items():
        if not (isinstance(value, (int, float)) and 0 < value < float("inf")):
            raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
    on_cpu(ranks)
    two_or_more(ranks)
    ours = choose_program("guards", program, ("odd_call",))
    rows = []
    limits: dict[str, Any] = {"timeout": 60.0, "stall": STALL_S}
    with Ranks(ranks.world_size, ranks.device, ranks.backend, **limits, quiet=True, live=False) as own:
        for when in LENGTHS:
            for name in help if when != SAME else help[:1]:
                arranged = {"sleep_s": sleep_s, "timeout_s": None if when == CONTROL else timeout_s}
                found = _attempt(own, ours.code.odd_call, when, name, arranged)
                rows.append({"differs": when, "help": name, **found, **arranged})
                if talk:
                    print(f"{when}, {name}: {rows[-1]['outcome']}", flush=True)
    settings = {"backend": ranks.backend, "device": ranks.device, "world_size": ranks.world_size}
    made = provenance(**settings, sleep_s=sleep_s, timeout_s=timeout_s, program=ours.digest)
    notes = [*ours.notes, *(f"{r['differs']}, {r['help']}: {r['outcome']}" for r in rows)]
    view, tables = "course.guards.odd_shape_figures:figure", {"outcomes": pd.DataFrame(rows)}
    return Report("odd_shape", ABOUT.title, ranks.label, tables, [], made, notes, view)


def _attempt(ranks: Ranks, calls: Any, when: str, name: str, arranged: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    row: dict[str, Any] = {"outcome": "right", "graphs by rank": "-", "dynamic by rank": "-", "said": ""}
    try:
        found = list(ranks.run(_play, calls, when, name, **arranged))
        failed = [one["ended"] for one in found if one["ended"] != "right"]
        row |= {
            "outcome": failed[0].partition(":")[0] if failed else "right",
            "said": "; ".join(failed)[:160],
        }
        if not failed:
            row["graphs by rank"] = " / ".join(str(len(one["dynamic"])) for one in found)
            row["dynamic by rank"] = " / ".join("yes" if any(one["dynamic"]) else "no" for one in found)
    except RankError as error:
        outcome, said = judge(error)
        row |= {"outcome": outcome, "said": said[:160]}
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def _play(calls: Any, when: str, name: str, sleep_s: float, timeout_s: float | None) -> dict[str, Any]:
    """On a rank: the calls of lesson 09, with the help switched on."""
    together = compiling_together(name.startswith("guard"), name.startswith("compiler"))
    mended = compiler_collectives_on_cpu() if name.endswith("repaired") else nullcontext()
    with mended, together:
        return calls(sleep_s, timeout_s, LENGTHS[when])
