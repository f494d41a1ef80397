"""The break-it tests as evidence for claims: what a test saw with its defence, and what it saw without."""

from __future__ import annotations

import re
import time
from typing import Any

import torch
import torch.distributed as dist

from labkit import contract
from labkit.lessons.break_it import experiment as break_it
from labkit.lessons.break_it.program import WINDOW_S
from labkit.lessons.shared.outcomes import all_of, drill
from labkit.ranks import RankError, Ranks
from labkit.study.checks import ENFORCED, Bench, Result, Seen, judging, probe, quietly, verdict
from labkit.torch_compat import dynamo_reset, funcol

SHORT_S, LATE_S, CONSERVATIVE_S = 1.0, 2.5, 20.0  # two timeouts, and how late a peer comes
# the break-it tests that are run, and what each says without its defence
TESTS = {
    "smoke": r"hung: rank \d waits in", "env": "nobody noticed", "compile-gate": r"\d graphs, [1-9]\d* breaks",
    "first-break": "LOG.warning",
    "guards": "[1-9] graphs", "one-dimension": "HealthError on rank 0 and 1: .* recompiles:",
    "orphan": "still waiting in", "preflight": "rank 1 was left waiting in broadcast", "digest": "nobody noticed",
    "fingerprint": "nobody noticed",
}  # fmt: skip


@probe
def tests(bench: Bench) -> Seen:
    """The break-it tests, each with its defence and without."""
    found: Seen = {}
    for on in ("on", "off"):
        report = break_it.run(bench.ranks(), [*TESTS], undefended=on == "off")
        said = report.tables["details"]["said"]
        for row, observed in zip(report.frame.to_dict("records"), said, strict=True):
            found.setdefault(row["test"], {})[on] = {"result": row["result"], "observed": observed}
    return found


def _told(seen: Seen, name: str) -> Result:
    on, off = seen[name]["on"], seen[name]["off"]
    right = on["result"] == "green" and off["result"] == "red"
    right &= (
        re.search(TESTS[name], off["observed"]) is not None
    )  # any other error is no sign of what is missing
    return verdict(right, f"{on['observed']}; without: {off['observed']}")


@judging(tests, word=ENFORCED)
def the_control_plane_runs(seen: Seen) -> Result:
    """Workers that follow announced plans end with their leader; workers that guess hang in a collective."""
    return _told(seen, "smoke")


@judging(tests, word=ENFORCED)
def a_variable_that_differs_fails_fast(seen: Seen) -> Result:
    """An environment variable that differs on one rank raises on all before the work; unnoticed, numbers are wrong."""
    return _told(seen, "env")


@judging(tests, word=ENFORCED)
def a_worker_leaves_within_the_window(seen: Seen) -> Result:
    """A worker whose leader is killed ends by its watchdog once the window is over; without one it goes on waiting."""
    silence = re.search(r"no heartbeat of the leader for ([\d.]+) s", seen["orphan"]["on"]["observed"])
    # it looks five times in a window, and the seconds are rounded
    in_time = silence is not None and WINDOW_S <= float(silence[1]) <= 1.3 * WINDOW_S
    return all_of(verdict(in_time, f"window {WINDOW_S:g} s"), _told(seen, "orphan"))


@judging(tests, word=ENFORCED)
def the_receiver_goes_on(seen: Seen) -> Result:
    """A message refused on the sender leaves the receiver free for the next one; without preflight it is stranded."""
    return _told(seen, "preflight")


@judging(tests, word=ENFORCED)
def a_changed_broadcast_is_caught(seen: Seen) -> Result:
    """A broadcast tensor that rank 0 changes ends in a digest mismatch on every rank; without digests in none."""
    return _told(seen, "digest")


@judging(tests, word=ENFORCED)
def a_changed_shard_is_caught(seen: Seen) -> Result:
    """A shard that one rank changes ends in a fingerprint mismatch on every rank; without them nobody notices."""
    return _told(seen, "fingerprint")


@judging(tests)
def the_compile_gate_shows_a_break(seen: Seen) -> Result:
    """A sharded model with functional all-reduces is one graph without a break; with hidden ones the gate is red."""
    return _told(seen, "compile-gate")


@judging(tests)
def the_first_break_is_named(seen: Seen) -> Result:
    """With fullgraph compilation fails at the first place that breaks, and names it; an earlier one shows as such."""
    on, off = (seen["first-break"][which]["observed"] for which in ("on", "off"))
    named = "cache[" in on and "LOG.warning" in off and "cache[" not in off
    said = "a region that slices a cache; without: a log call before it"
    return all_of(verdict(named, said), _told(seen, "first-break"))


@judging(tests)
def served_shapes_are_warmed(seen: Seen) -> Result:
    """A warmup with the shapes that are served leaves nothing to compile; one with another shape does."""
    return _told(seen, "guards")


@judging(tests)
def a_dimension_that_varies_recompiles_once(seen: Seen) -> Result:
    """Three lengths, alike on all ranks, cost each at most one recompile; varied on one rank, its counts differ."""
    counts = re.search(r"(\d) graphs, 0 breaks, (\d) recompiles$", seen["one-dimension"]["on"]["observed"])
    once = counts is not None and int(counts[1]) == 1 + int(counts[2]) and counts[2] in "01"
    return all_of(verdict(once, "lengths 4, 4, 6, 6, 7"), _told(seen, "one-dimension"))


WARMED = {"as served": (2, True), "other rows": (3, True), "other flag": (2, False)}


@probe
def warming(bench: Bench) -> Seen:
    """Warmups in which one rank has more to compile, breaks its graph, or none took place; and a program in regions."""
    return {
        "lockstep": list(bench.run(_rounds, True)),
        "even": list(bench.run(_rounds, False)),
        "warmed": list(bench.run(_serving, True)),
        "cold": list(bench.run(_serving, False)),
        "gate": _gated(bench, True),
        "no_gate": _gated(bench, False),
        "served": {name: list(bench.run(_served, *how)) for name, how in WARMED.items()},
        "whole": list(bench.run(_regional, False)),
        "regions": list(bench.run(_regional, True)),
        "path": list(bench.run(_path)),
        "planned": {name: _planned(odd) for name, odd in (("alike", 0), ("apart", 1))},
    }


def _compiled(program: Any) -> Any:
    dynamo_reset()
    return torch.compile(program, backend="eager", dynamic=False)


def _sum(x: Any) -> Any:
    return funcol.all_reduce(x * 2, "sum", dist.group.WORLD)


def _rounds(late: bool) -> list[int]:
    """Rounds of a warmup, as counted by it and by calls, where rank 1 compiles once more in the second round or not."""
    exchange, run, made = contract.Exchange.connect("check-rounds"), _compiled(_sum), []

    def call() -> None:
        made.append(1)
        run(torch.ones(2, 4)) + 0
        if late and exchange.rank and len(made) == 2:
            _compiled(lambda x: x + 1)(torch.ones(2))

    with torch.no_grad():
        warm = contract.warm_up(exchange, call, gate=False)
    return [warm.rounds, len(made)]


def _serving(warmed: bool) -> int:
    """Graphs that this rank compiles while it serves; rank 0 has compiled the program before, rank 1 has not."""
    exchange, run = contract.Exchange.connect("check-serving"), _compiled(lambda x: x * 2)
    with torch.no_grad():
        if exchange.rank == 0:
            run(torch.ones(2, 4))
        if warmed:
            contract.warm_up(exchange, lambda: run(torch.ones(2, 4)), gate=False)
        with contract.compile_health() as health:
            run(torch.ones(2, 4))
    exchange.gather("served", health.graphs)
    return health.graphs


def _gated(bench: Bench, gate: bool) -> str:
    """How a warmup and a longer request end, where rank 1 takes a branch that breaks its graph and then sums again."""
    found = drill(bench.ranks(), _breaking, gate)
    raised = found.get("says", "").count("HealthError")
    return f"HealthError on {raised} ranks" if found["how"] == "failed" and raised else found["how"]


def _breaking(gate: bool) -> None:
    exchange = contract.Exchange.connect("check-gate")

    def program(x, other):
        y = _sum(x)
        if not other:
            return y
        print("", end="")
        return _sum(y) if x.shape[0] > 2 else y

    run = _compiled(program)
    with torch.no_grad():
        contract.warm_up(exchange, lambda: run(torch.ones(2, 4), exchange.rank == 1) + 0, gate=gate)
        run(torch.ones(4, 4), exchange.rank == 1) + 0


def _served(rows: int, flag: bool) -> int:
    """Graphs that a request of two rows with the flag compiles, after a warmup with so many rows and this flag."""
    exchange = contract.Exchange.connect("check-served")
    run = _compiled(lambda x, doubled: _sum(x) * 2 if doubled else _sum(x))
    with torch.no_grad():
        contract.warm_up(exchange, lambda: run(torch.ones(rows, 4), flag) + 0)
        with contract.compile_health() as health:
            run(torch.ones(2, 4), True) + 0
    return health.graphs


def _regional(regions: bool) -> int:
    """Graphs of a stack of two layers whose glue prints on rank 1, compiled whole or layer by layer."""

    def stack(x, layers):
        y = layers(x)
        if dist.get_rank() == 1:
            print("", end="")
        return layers(y)

    run = _compiled(_sum if regions else stack)
    with torch.no_grad(), contract.compile_health() as health:
        (stack(torch.ones(4), run) if regions else run(torch.ones(4), _sum)) + 0
    return health.graphs


def _path() -> list[Any]:
    """A warmup whose calls the leader announces: its rows and its flag, and what was left to compile."""
    exchange, warm = contract.Exchange.connect("check-path"), []
    run = _compiled(lambda x, doubled: x * 2 if doubled else x)

    def call(index: int) -> contract.Plan:
        mine = contract.Plan.of("infer", phases={"rows": 3, "doubled": True}, calls=1, index=index)
        plan = contract.announce(exchange, None if exchange.rank else mine)
        with contract.executing(plan, exchange) as made, torch.no_grad():
            made.step()
            run(torch.ones(plan.phases["rows"], 4), plan.phases["doubled"])
        return plan

    contract.warm_up(exchange, lambda: warm.append(call(-1).warmup))
    with contract.compile_health() as health:
        followed = call(0).phases
    return [all(warm), followed["rows"], followed["doubled"], health.graphs]


def _planned(odd: int) -> list[str]:
    """How two ranks end of which the second plans so many calls more of a warmup."""

    def body(ex: contract.Exchange) -> Any:
        return contract.agree(ex, contract.Plan.of("infer", calls=1 + odd * ex.rank, index=-1))

    return [type(end).__name__ for end in contract.rehearse(2, body, timeout=5.0)]


@judging(warming, word=ENFORCED)
def warmup_is_in_lockstep(seen: Seen) -> Result:
    """Where one rank still compiles, all ranks make more rounds than where none does, as many on each."""
    late, even = seen["lockstep"], seen["even"]
    alike = all(len({number for one in ranks for number in one}) == 1 for ranks in (late, even))
    return verdict(
        alike and late[0][0] > even[0][0],
        f"rounds by rank {[one[0] for one in late]} where rank 1 compiled late, {[one[0] for one in even]} where not",
    )


@judging(warming)
def warmup_evens_out(seen: Seen) -> Result:
    """A rank that has still to compile does so while it serves, unless a warmup came before."""
    cold, warmed = seen["cold"], seen["warmed"]
    right = cold == [0, 1] and warmed == [0, 0]
    return verdict(
        right, f"graphs compiled while serving, by rank: {cold} without a warmup, {warmed} after one"
    )


@judging(warming, word=ENFORCED)
def warmup_takes_the_path(seen: Seen) -> Result:
    """Workers follow a warmup that the leader announces, its shapes and flag, and have nothing left to compile."""
    path = seen["path"]
    said = f"announced warmup followed, rows, flag, graphs in the next call, by rank: {path}"
    return verdict(path == [[True, 3, True, 0]] * 2, said)


@judging(warming, word=ENFORCED)
def the_gate_is_a_quick_error(seen: Seen) -> Result:
    """A rank that compiled otherwise is an error on every rank as the warmup ends; without the gate a request hangs."""
    right = seen["gate"] == "HealthError on 2 ranks" and seen["no_gate"] == "hung"
    return verdict(right, f"with the gate: {seen['gate']}; without: {seen['no_gate']}")


@judging(warming)
def served_shapes_and_flags_are_warmed(seen: Seen) -> Result:
    """After a warmup with the shapes and flags that are served a request compiles nothing; with others it does."""
    right = {name: counts == [int(name != "as served")] * 2 for name, counts in seen["served"].items()}
    said = ", ".join(f"{name} {counts}" for name, counts in seen["served"].items())
    return verdict(
        all(right.values()) and len(right) == len(WARMED), f"graphs a request compiles, by warmup: {said}"
    )


@judging(warming, word=ENFORCED)
def warmup_calls_are_planned(seen: Seen) -> Result:
    """Ranks that plan a warmup call differently raise as they do for any other; ranks that plan it alike do not."""
    alike, apart = seen["planned"]["alike"], seen["planned"]["apart"]
    return verdict(
        apart == ["PlanError"] * 2 and alike == ["Plan"] * 2,
        f"index -1, other calls: {', '.join(apart)}; the same calls: {', '.join(alike)}",
    )


@judging(warming)
def regions_leave_less_room(seen: Seen) -> Result:
    """A print between layers on one rank makes its graphs other ones, unless only the layers are compiled."""
    whole, regions = seen["whole"], seen["regions"]
    right = len(set(whole)) > 1 and set(regions) == {1}
    return verdict(right, f"graphs by rank: {whole} compiled whole, {regions} layer by layer")


@probe
def patience(bench: Bench) -> Seen:
    """An all-reduce to which a peer comes late, as it does when it still compiles, or not at all; by timeout."""
    ends: Seen = {}
    for name, seconds in (("short", SHORT_S), ("conservative", CONSERVATIVE_S)):
        with Ranks(2, "cpu", "gloo", collective_timeout=seconds, timeout=90, quiet=True, stall=None) as ranks:
            ends[f"{name}_late"] = _ends(ranks, _late, LATE_S)
    with Ranks(2, "cpu", "gloo", collective_timeout=SHORT_S, timeout=90, quiet=True, stall=None) as ranks:
        ends["absent"] = _ends(ranks, _late, None)
    return ends


def _ends(ranks: Ranks, program: Any, *arguments: Any) -> str:
    """'right', or the error of the rank that waited."""
    try:
        return "right" if list(ranks.run(quietly, program, *arguments)) == [2.0, 2.0] else "wrong"
    except RankError as error:
        said = " ".join(f"{outcome.type} {outcome.message}" for outcome in error.outcomes)
        return "timed out" if "timed out" in said.lower() else f"failed: {said[:80]}"


def _late(seconds: float | None) -> float:
    """An all-reduce that rank 1 enters so late; None: never, and it stays."""
    if dist.get_rank():
        time.sleep(LATE_S if seconds is None else seconds)
    x = torch.ones(2)
    if dist.get_rank() == 0 or seconds is not None:
        dist.all_reduce(x)
    return x[0].item()


@judging(patience)
def conservative_timeouts_pay(seen: Seen) -> Result:
    """A timeout that a late peer misses kills a correct program, a longer one does not; an absent peer ends in it."""
    ends = [seen[name] for name in ("short_late", "conservative_late", "absent")]
    return verdict(
        ends == ["timed out", "right", "timed out"],
        f"a peer that sleeps {LATE_S:g} s before it comes: {seen['short_late']} with a timeout of {SHORT_S:g} s, "
        f"{seen['conservative_late']} with {CONSERVATIVE_S:g} s; one that never comes: {seen['absent']}",
    )
