"""The contract's parts, each on threads with one rank that differs: what they enforce, and what they let through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labkit import contract
from labkit.contract import Exchange, Plan
from labkit.study.checks import ENFORCED, Bench, Result, Seen, judging, probe, verdict


def _ends(body: Callable[[Exchange], Any]) -> list[str]:
    """How each of two ranks ended: 'ok', or the error and what it said."""
    found = contract.rehearse(2, body, timeout=5.0)
    return [f"{type(one).__name__}: {one}" if isinstance(one, Exception) else "ok" for one in found]


def two(body: Callable[[Exchange, bool], Any]) -> dict[str, list[str]]:
    """The body on ranks that are alike, and with rank 1 the odd one."""
    return {"alike": _ends(lambda ex: body(ex, False)), "odd": _ends(lambda ex: body(ex, ex.rank == 1))}


@probe
def settings(bench: Bench) -> Seen:
    """Settings of every row of the invariants table, the same on both ranks and different on rank 1."""

    def flag(name: str) -> Callable[[Exchange, bool], Any]:
        def body(ex: Exchange, odd: bool) -> Any:
            mine = contract.settings(flags={name: "other" if odd else "usual"}, with_versions=False)
            return contract.assert_parity(ex, mine)

        return body

    def auto(ex: Exchange, odd: bool) -> Any:
        chosen = {"attention": lambda: "paged" if odd else "flash"}
        return contract.assert_parity(
            ex, contract.settings(flags={"attention": "auto"}, effective=chosen, with_versions=False)
        )

    def requested(ex: Exchange, odd: bool) -> Any:
        return contract.assert_parity(ex, contract.settings(flags={"attention": "auto"}, with_versions=False))

    def twice(ex: Exchange, odd: bool) -> Any:
        contract.assert_parity(ex, {"attention in effect": "flash"})
        return contract.assert_parity(ex, {"attention in effect": "paged" if odd else "flash"})

    def tripwires(ex: Exchange, odd: bool) -> Any:
        return contract.assert_parity(ex, contract.InputDigests(ex, every=0 if odd else 1).settings())

    names = ("tensor_parallel", "compile", "fullgraph", "attention_backend", "pipeline", "compile_pipeline")
    found = {name: two(flag(name)) for name in names}
    return found | {
        "effective": two(auto),
        "requested": two(requested),
        "again": two(twice),
        "tripwires": two(tripwires),
    }


@probe
def calls(bench: Bench) -> Seen:
    """Plans that differ in one thing on rank 1, and calls that were made otherwise than planned."""

    phases = {"recompute": False, "num_denoise_steps": 4, "init_cache": False}

    def plan(**other: Any) -> Callable[[Exchange, bool], Any]:
        def body(ex: Exchange, odd: bool) -> Any:
            usual: dict[str, Any] = {"calls": 2, "phases": phases, "epochs": {"cache": 1}}
            return contract.agree(ex, Plan.of(**{"action": "infer", **usual, **(other if odd else {})}))

        return body

    def made(number: int) -> Callable[[Exchange, bool], Any]:
        def body(ex: Exchange, odd: bool) -> Any:
            with contract.executing(Plan.of("infer", calls=2)) as run:
                for _ in range(number if odd else 2):
                    run.step()

        return body

    def announced(ex: Exchange, odd: bool) -> Any:
        mine = Plan.of("infer", calls=2, phases={"recompute": True}) if ex.rank == 0 else None
        plan = contract.announce(ex, mine)
        if odd:
            raise ValueError(f"followed: {plan.phases['recompute']}, {len(plan.calls)} calls")

    others: dict[str, dict[str, Any]] = {
        "action": {"action": "noop"},
        "epoch": {"epochs": {"cache": 2}},
        "phase": {"phases": phases | {"recompute": True}},
        "number": {"calls": 3},
        "steps": {"phases": phases | {"num_denoise_steps": 3}},
        "set-up": {"phases": phases | {"init_cache": True}},
    }
    found = {name: two(plan(**other)) for name, other in others.items()}
    return found | {"fewer": two(made(1)), "more": two(made(3)), "announced": two(announced)}


WARMUP = -1  # the index of a call that warms up


@probe
def drift(bench: Bench) -> Seen:
    """Inputs and weights that differ on rank 1, in a call, in a warmup, and after an update that all know of."""

    def inputs(index: int) -> Callable[[Exchange, bool], Any]:
        def body(ex: Exchange, odd: bool) -> Any:
            return contract.InputDigests(ex).check(index, x=torch.ones(4) + (1e-6 if odd else 0))

        return body

    def weights(ex: Exchange, odd: bool) -> Any:
        shard = {"w": torch.ones(4) * (ex.rank + 1)}
        watched = contract.Fingerprints(ex, shard)
        if odd:
            shard["w"][0] += 1e-6 * 2
        watched.check()

    def updated(ex: Exchange, odd: bool) -> Any:
        shard = {"w": torch.ones(4)}
        watched = contract.Fingerprints(ex, shard)
        shard["w"] += 1
        watched.renew()
        watched.check()

    def planned(ex: Exchange, odd: bool) -> Any:
        return contract.agree(ex, Plan.of("infer", calls=3 if odd else 2, index=WARMUP))

    found = {"input": two(inputs(0)), "warmup": two(inputs(WARMUP)), "warmup_plan": two(planned)}
    return found | {"weight": two(weights), "updated": two(updated)}


def _caught(row: dict[str, list[str]], kind: str) -> bool:
    """Both ranks raise this error where one is odd, and neither where they are alike."""
    return row["alike"] == ["ok", "ok"] and all(said.startswith(kind) for said in row["odd"])


def _line(row: dict[str, list[str]]) -> str:
    return row["odd"][0].splitlines()[-1].strip()


@judging(settings, word=ENFORCED)
def topology_is_compared(seen: Seen) -> Result:
    """A degree of parallelism that differs raises on both ranks, naming each value."""
    row = seen["tensor_parallel"]
    return verdict(_caught(row, "ParityError"), _line(row))


@judging(settings, word=ENFORCED)
def compile_settings_are_compared(seen: Seen) -> Result:
    """Whether to compile, and whether with fullgraph, is compared; a difference raises on both ranks."""
    rows = [seen["compile"], seen["fullgraph"]]
    return verdict(all(_caught(row, "ParityError") for row in rows), "; ".join(map(_line, rows)))


@judging(settings, word=ENFORCED)
def backend_flags_are_compared(seen: Seen) -> Result:
    """An attention backend that was asked for on one rank only raises on both ranks."""
    row = seen["attention_backend"]
    return verdict(_caught(row, "ParityError"), _line(row))


@judging(settings, word=ENFORCED)
def what_changes_graphs_or_kernels_is_compared(seen: Seen) -> Result:
    """Whether to compile, whether with fullgraph, and which attention backend: a difference raises on both ranks."""
    rows = [seen["compile"], seen["fullgraph"], seen["attention_backend"]]
    return verdict(all(_caught(row, "ParityError") for row in rows), "; ".join(map(_line, rows)))


@judging(settings, word=ENFORCED)
def the_backend_in_effect_counts(seen: Seen) -> Result:
    """Where 'auto' resolves differently, comparing what was asked sees nothing; what is in effect shows it."""
    asked, effect = seen["requested"], seen["effective"]
    blind = asked["odd"] == ["ok", "ok"]
    return verdict(
        blind and _caught(effect, "ParityError"), f"asked 'auto' on both: {asked['odd'][0]}; {_line(effect)}"
    )


@judging(settings, word=ENFORCED)
def parity_can_be_checked_again(seen: Seen) -> Result:
    """A second comparison after start-up sees a backend that has changed since on one rank."""
    return verdict(_caught(seen["again"], "ParityError"), _line(seen["again"]))


@judging(settings, word=ENFORCED)
def the_pipeline_is_pinned(seen: Seen) -> Result:
    """Another pipeline on one rank raises on both."""
    return verdict(_caught(seen["pipeline"], "ParityError"), _line(seen["pipeline"]))


@judging(settings, word=ENFORCED)
def whether_the_pipeline_is_compiled_is_compared(seen: Seen) -> Result:
    """Compiling the whole pipeline on one rank only raises on both."""
    row = seen["compile_pipeline"]
    return verdict(_caught(row, "ParityError"), _line(row))


@judging(settings, word=ENFORCED)
def tripwires_are_compared(seen: Seen) -> Result:
    """Digests that are on for one rank only are a difference in settings."""
    return verdict(_caught(seen["tripwires"], "ParityError"), _line(seen["tripwires"]))


@judging(calls, word=ENFORCED)
def the_action_travels(seen: Seen) -> Result:
    """Another action on one rank raises on both before the call."""
    return verdict(_caught(seen["action"], "PlanError"), _line(seen["action"]))


@judging(calls, word=ENFORCED)
def epochs_travel(seen: Seen) -> Result:
    """Another cache epoch on one rank raises on both before the call."""
    return verdict(_caught(seen["epoch"], "PlanError"), _line(seen["epoch"]))


@judging(calls, word=ENFORCED)
def phases_are_in_the_plan(seen: Seen) -> Result:
    """An optional phase, or a number of calls, that one rank has otherwise raises on both before the call."""
    rows = [seen["phase"], seen["number"]]
    return verdict(all(_caught(row, "PlanError") for row in rows), "; ".join(map(_line, rows)))


@judging(calls, word=ENFORCED)
def steps_are_in_the_plan(seen: Seen) -> Result:
    """Another number of denoising steps on one rank raises on both before the call."""
    return verdict(_caught(seen["steps"], "PlanError"), _line(seen["steps"]))


@judging(calls, word=ENFORCED)
def cache_set_up_is_in_the_plan(seen: Seen) -> Result:
    """A cache that one rank alone sets up raises on both before the call."""
    return verdict(_caught(seen["set-up"], "PlanError"), _line(seen["set-up"]))


@judging(calls, word=ENFORCED)
def the_plan_is_followed(seen: Seen) -> Result:
    """A plan that rank 0 announces fixes phases and number of calls on the other rank, which derives nothing."""
    row = seen["announced"]
    right = row["alike"] == ["ok", "ok"] and row["odd"][1] == "ValueError: followed: True, 2 calls"
    return verdict(right, f"rank 1 {row['odd'][1].partition(': ')[2] or row['odd'][1]}")


@judging(calls, word=ENFORCED)
def calls_are_counted(seen: Seen) -> Result:
    """A rank that makes fewer or more calls than planned raises."""
    fewer, more = seen["fewer"], seen["more"]
    right = all(r["alike"] == ["ok", "ok"] and r["odd"][1].startswith("PlanError") for r in (fewer, more))
    return verdict(right, f"{fewer['odd'][1]}; {more['odd'][1]}")


@judging(drift, word=ENFORCED)
def digests_catch_inputs(seen: Seen) -> Result:
    """An input that differs in one element on one rank raises on both."""
    row = seen["input"]
    return verdict(_caught(row, "DigestError"), _line(row))


@judging(drift, word=ENFORCED)
def warmup_has_no_digest(seen: Seen) -> Result:
    """In a call of index -1 other inputs pass, and another plan does not; in the next call other inputs do not."""
    passes = seen["warmup"]["odd"] == ["ok", "ok"] and seen["claimed"] == str(WARMUP)
    right = passes and _caught(seen["input"], "DigestError") and _caught(seen["warmup_plan"], "PlanError")
    return verdict(
        right,
        f"index {WARMUP}: other inputs {seen['warmup']['odd'][0]}, another plan {_line(seen['warmup_plan'])}; "
        f"index 0: {_line(seen['input'])}",
    )


@judging(drift, word=ENFORCED)
def fingerprints_catch_weights(seen: Seen) -> Result:
    """A shard that changed on one rank raises on both, naming the rank."""
    row = seen["weight"]
    return verdict(_caught(row, "FingerprintError"), _line(row))


@judging(drift, word=ENFORCED)
def weights_change_only_by_agreement(seen: Seen) -> Result:
    """A change that nobody announced raises; one that every rank takes up does not."""
    agreed = seen["updated"]["odd"] == ["ok", "ok"]
    right = agreed and _caught(seen["weight"], "FingerprintError")
    return verdict(right, f"agreed: {seen['updated']['odd'][0]}; not agreed: {_line(seen['weight'])}")


@judging(drift, word=ENFORCED)
def both_tripwires_catch(seen: Seen) -> Result:
    """Digests catch an input, fingerprints a weight, that drifts on one rank."""
    right = _caught(seen["input"], "DigestError") and _caught(seen["weight"], "FingerprintError")
    return verdict(right, f"{_line(seen['input'])}; {_line(seen['weight'])}")
