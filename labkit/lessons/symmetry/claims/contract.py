"""The contract's parts, each on threads with one rank that differs: what they enforce, and what they let through."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from labkit import contract
from labkit.contract import Exchange, Plan
from labkit.lessons.shared.outcomes import all_of
from labkit.study.checks import ENFORCED, Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset


def _ends(body: Callable[[Exchange], Any]) -> list[str]:
    """How each of two ranks ended: 'ok', or the error and what it said."""
    found = contract.rehearse(2, body, timeout=5.0)
    return [f"{type(one).__name__}: {one}" if isinstance(one, Exception) else "ok" for one in found]


def two(body: Callable[[Exchange, bool], Any]) -> dict[str, list[str]]:
    """The body on ranks that are alike, and with rank 1 the odd one."""
    return {"alike": _ends(lambda ex: body(ex, False)), "odd": _ends(lambda ex: body(ex, ex.rank == 1))}


def _reloads(ex: Exchange, odd: bool) -> Any:
    """The odd rank copies other weights into its shard, of which one element differs a little."""
    shard = {"w": torch.ones(4) * (ex.rank + 1)}
    watched = contract.Fingerprints(ex, shard)
    if odd:
        shard["w"].copy_(shard["w"] + torch.tensor([2e-6, 0, 0, 0]))
    watched.check()


# what the environment of a rank says, by the rows of the invariants table
VARIABLES = {
    "world_size": "WORLD_SIZE", "tensor_parallel": "SCOPE_TENSOR_PARALLEL", "plan": "SCOPE_TP_PLAN",
    "pp_enabled": "SCOPE_PP_ENABLED", "compile": "SCOPE_TP_ALLOW_COMPILE", "fullgraph": "SCOPE_TORCH_COMPILE_FULLGRAPH",
    "compile_pipeline": "SCOPE_COMPILE_KREA_PIPELINE", "kv_bias_backend": "SCOPE_KV_BIAS_BACKEND",
}  # fmt: skip


@probe
def settings(bench: Bench) -> Seen:
    """Settings of every row of the invariants table, the same on two ranks and different on rank 1: variables of their
    environments, what torch is set to, what 'auto' becomes for attention, and a rank that does not compile."""

    def pipeline(ex: Exchange, odd: bool) -> Any:
        mine = contract.settings(flags={"pipeline": "other" if odd else "usual"}, with_versions=False)
        return contract.assert_parity(ex, mine)

    def tripwires(ex: Exchange, odd: bool) -> Any:
        return contract.assert_parity(ex, contract.InputDigests(ex, every=0 if odd else 1).settings())

    def fingerprints(ex: Exchange, odd: bool) -> Any:
        watched = contract.Fingerprints(ex, {} if odd else {"w": torch.ones(2)})
        return contract.assert_parity(ex, watched.settings())

    rows = list(bench.run(_on_a_rank))
    found: Seen = {
        name: {how: [row["ends"][name][how] for row in rows] for how in ("alike", "odd")}
        for name in rows[0]["ends"]
    }
    return found | {
        "for_the_log": [row["logged"] for row in rows],
        "kernels": [row["kernels"] for row in rows],
        "pipeline": two(pipeline),
        "tripwires": two(tripwires),
        "fingerprints": two(fingerprints),
        "reloaded": two(_reloads),
        "reloaded by all": _ends(lambda ex: _reloads(ex, True)),
    }


def _on_a_rank() -> Seen:
    """On a rank: how each comparison ends where the ranks are alike, and where rank 1 is the odd one."""
    exchange, heard = Exchange.connect("check-settings", timeout=20.0), io.StringIO()

    def variable(name: str) -> Callable[[bool], Any]:
        def body(odd: bool) -> None:
            with mock.patch.dict(os.environ, {name: "0" if odd else "1"}):
                contract.assert_parity(exchange, contract.settings(VARIABLES.values(), with_versions=False))

        return body

    def attention(odd: bool, resolved: bool = True) -> None:
        effective = {"attention": _kernel} if resolved else None
        with sdpa_kernel(SDPBackend.MATH) if odd else contextlib.nullcontext():
            mine = contract.settings(flags={"attention": "auto"}, effective=effective, with_versions=False)
        contract.assert_parity(exchange, mine)

    def again(odd: bool) -> None:
        attention(False)
        attention(odd)

    def precision(odd: bool) -> None:
        torch.set_float32_matmul_precision("high" if odd else "highest")
        try:
            contract.assert_parity(exchange, contract.settings())
        finally:
            torch.set_float32_matmul_precision("highest")

    def uncompiled(odd: bool) -> None:
        dynamo_reset()
        with contract.compile_health() as health:
            (torch.sin if odd else torch.compile(lambda x: x.sin(), backend="eager"))(torch.ones(2))
        contract.assert_same_health(exchange, health)

    bodies: dict[str, Callable[[bool], Any]] = {name: variable(word) for name, word in VARIABLES.items()}
    bodies |= {
        "requested": functools.partial(attention, resolved=False),
        "effective": attention,
        "again": again,
    }
    bodies |= {"precision": precision, "uncompiled": uncompiled}
    log, handler = logging.getLogger("labkit.contract"), logging.StreamHandler(heard)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        attention(False)
        logged = heard.getvalue()
        ends = {name: {how: _end(body, how == "odd" and exchange.rank == 1) for how in ("alike", "odd")}
                for name, body in bodies.items()}  # fmt: skip
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    with sdpa_kernel(SDPBackend.MATH) if exchange.rank else contextlib.nullcontext():
        return {"ends": ends, "logged": logged, "kernels": _kernel()}


def _end(body: Callable[[bool], Any], odd: bool) -> str:
    try:
        body(odd)
    except contract.ContractError as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def _kernel() -> str:
    """The kernel that torch chooses here for attention, by itself and by what it is allowed: the one that ran."""
    q = torch.ones(1, 1, 4, 8)
    with torch.profiler.profile() as profile:
        scaled_dot_product_attention(q, q, q)
    ran = [event.key for event in profile.key_averages() if event.key.startswith("aten::_scaled")]
    return ", ".join(ran).replace("aten::_scaled_dot_product_", "")


@probe
def calls(bench: Bench) -> Seen:
    """Plans that differ in one thing on rank 1, and calls that were made otherwise than planned."""

    phases = {"recompute": False, "num_denoise_steps": 4, "init_cache": False}
    epochs = {"cache": 1, "control": 5}

    def plan(**other: Any) -> Callable[[Exchange, bool], Any]:
        def body(ex: Exchange, odd: bool) -> Any:
            usual: dict[str, Any] = {"calls": 2, "phases": phases, "epochs": epochs}
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

    def carried(action: str) -> Seen:
        """What rank 1 has of the plan that rank 0 announces."""
        mine = Plan.of(action, calls=2, phases=phases, epochs=epochs)
        plan = contract.rehearse(2, lambda ex: contract.announce(ex, None if ex.rank else mine))[1]
        number = {"number": len(plan.calls)}
        return {"action": plan.action, "phases": plan.phases, "epochs": plan.epochs, "calls": number}

    others: dict[str, dict[str, Any]] = {
        "action": {"action": "noop"},
        "epoch": {"epochs": epochs | {"cache": 2}},
        "control epoch": {"epochs": epochs | {"control": 6}},
        "phase": {"phases": phases | {"recompute": True}},
        "number": {"calls": 3},
        "steps": {"phases": phases | {"num_denoise_steps": 3}},
        "set-up": {"phases": phases | {"init_cache": True}},
    }
    found: Seen = {name: two(plan(**other)) for name, other in others.items()}
    found["carried"] = [carried(action) for action in ACTIONS]
    return found | {"fewer": two(made(1)), "more": two(made(3)), "announced": two(announced)}


WARMUP = -1  # the index of a call that warms up
ACTIONS = ("infer", "noop", "shutdown")


@probe
def drift(bench: Bench) -> Seen:
    """Inputs and weights that differ on rank 1, in a call, in a warmup, and after an update that all know of."""

    def inputs(index: int) -> Callable[[Exchange, bool], Any]:
        def body(ex: Exchange, odd: bool) -> Any:
            return contract.InputDigests(ex).check(index, x=torch.ones(4) + (1e-6 if odd else 0))

        return body

    def updated(ex: Exchange, odd: bool) -> Any:
        shard = {"w": torch.ones(4)}
        watched = contract.Fingerprints(ex, shard)
        shard["w"] += 1
        watched.renew()
        watched.check()

    def alone(ex: Exchange, odd: bool) -> Any:
        """A rank that takes its own update up, of which its peer does not know."""
        shard = {"w": torch.ones(4)}
        watched = contract.Fingerprints(ex, shard)
        if odd:
            shard["w"] += 1
            watched.renew()
        watched.check()

    def periodic(ex: Exchange, odd: bool) -> Any:
        """Six calls with digests and a check after every second one; the odd rank's weights drift in call 2."""
        shard, digests = {"w": torch.ones(4)}, contract.InputDigests(ex)
        watched = contract.Fingerprints(ex, shard)
        for index in range(6):
            shard["w"] += float(odd and index == 2)
            digests.check(index, x=torch.ones(4))
            try:
                watched.check() if index % 2 else None
            except contract.FingerprintError as error:
                raise contract.FingerprintError(f"after call {index}: {error}") from error

    def every_call(ex: Exchange, odd: bool) -> Any:
        digests, caught = contract.InputDigests(ex), []
        for index in range(3):
            try:
                digests.check(index, x=torch.ones(4) * (index + odd))
            except contract.DigestError:
                caught.append(index)
        if caught:
            raise contract.DigestError(f"calls {caught}")

    def planned(ex: Exchange, odd: bool) -> Any:
        return contract.agree(ex, Plan.of("infer", calls=3 if odd else 2, index=WARMUP))

    found = {"input": two(inputs(0)), "warmup": two(inputs(WARMUP)), "warmup_plan": two(planned)}
    found |= {"every_call": two(every_call), "periodic": two(periodic), "renewed_alone": two(alone)}
    return found | {"weight": two(_reloads), "updated": two(updated)}


def _caught(row: dict[str, list[str]], kind: str) -> bool:
    """Both ranks raise this error where one is odd, and neither where they are alike."""
    return row["alike"] == ["ok", "ok"] and all(said.startswith(kind) for said in row["odd"])


def _line(row: dict[str, list[str]]) -> str:
    return row["odd"][0].splitlines()[-1].strip()


def _all_caught(seen: Seen, kind: str, *names: str) -> Result:
    rows = [seen[name] for name in names]
    return verdict(all(_caught(row, kind) for row in rows), "; ".join(map(_line, rows)))


def _variables(seen: Seen, *names: str) -> Result:
    """Whether a variable that differs in the environment of rank 1 raises on both ranks, by its name."""
    named = all(_line(seen[name]) == f"env {VARIABLES[name]}: rank 0 1, rank 1 0" for name in names)
    caught = _all_caught(seen, "ParityError", *names)
    return caught if named else verdict(False, caught.measured)


@judging(settings, word=ENFORCED)
def topology_is_compared(seen: Seen) -> Result:
    """A world size, a degree of parallelism or a role that differs raises on both ranks, naming each value."""
    return _variables(seen, "world_size", "tensor_parallel", "plan", "pp_enabled")


@judging(settings, word=ENFORCED)
def compile_settings_are_compared(seen: Seen) -> Result:
    """Whether to compile, and whether with fullgraph, is compared, and so is whether a rank did compile."""
    return all_of(_variables(seen, "compile", "fullgraph"), _all_caught(seen, "HealthError", "uncompiled"))


@judging(settings, word=ENFORCED)
def backend_flags_are_compared(seen: Seen) -> Result:
    """A backend of the KV bias, or of attention, that is another one on one rank raises on both ranks."""
    return all_of(_variables(seen, "kv_bias_backend"), _all_caught(seen, "ParityError", "effective"))


@judging(settings, word=ENFORCED)
def what_changes_graphs_or_kernels_is_compared(seen: Seen) -> Result:
    """Whether to compile, what, and with fullgraph, which backends, and torch's precision of products: a difference
    raises on both ranks."""
    chosen = _variables(seen, "compile", "compile_pipeline", "fullgraph", "kv_bias_backend")
    return all_of(chosen, _all_caught(seen, "ParityError", "effective", "precision"))


@judging(settings, word=ENFORCED)
def the_backend_in_effect_counts(seen: Seen) -> Result:
    """Where torch takes another kernel for 'auto' on one rank, comparing what was asked sees nothing; what ran does."""
    asked, effect = seen["requested"], seen["effective"]
    blind = asked["odd"] == ["ok", "ok"] and len(set(seen["kernels"])) == 2
    return verdict(
        blind and _caught(effect, "ParityError"), f"asked 'auto' on both: {asked['odd'][0]}; {_line(effect)}"
    )


@judging(settings, word=ENFORCED)
def the_backend_in_effect_is_told_and_compared(seen: Seen) -> Result:
    """The comparison logs on each rank what 'auto' became; a difference raises on both ranks."""
    kernel = seen["kernels"][0]
    told = [f"rank {r}: " in said and f"'attention in effect': \"'{kernel}'\"" in said
            for r, said in enumerate(seen["for_the_log"])]  # fmt: skip
    logged = verdict(told == [True, True], f"{kernel} is in the log of {sum(told)} ranks")
    return all_of(logged, _all_caught(seen, "ParityError", "effective"))


@judging(settings, word=ENFORCED)
def parity_can_be_checked_again(seen: Seen) -> Result:
    """A second comparison after start-up sees another kernel that torch takes since then on one rank."""
    changed = verdict(len(set(seen["kernels"])) == 2, f"kernels {' and '.join(seen['kernels'])}")
    return all_of(changed, _all_caught(seen, "ParityError", "again"))


@judging(settings, word=ENFORCED)
def the_pipeline_is_pinned(seen: Seen) -> Result:
    """Another pipeline on one rank raises on both, and so do weights that one rank, or each, loads anew."""
    reloaded = seen["reloaded by all"]
    everywhere = verdict(
        all(said.startswith("FingerprintError") for said in reloaded), reloaded[0].splitlines()[-1].strip()
    )
    one = _all_caught(seen, "FingerprintError", "reloaded")
    return all_of(_all_caught(seen, "ParityError", "pipeline"), one, everywhere)


@judging(settings, word=ENFORCED)
def whether_the_pipeline_is_compiled_is_compared(seen: Seen) -> Result:
    """Compiling the whole pipeline on one rank only raises on both."""
    return _variables(seen, "compile_pipeline")


@judging(settings, word=ENFORCED)
def tripwires_are_compared(seen: Seen) -> Result:
    """Digests, or fingerprints, that are on for one rank only are a difference in settings."""
    return _all_caught(seen, "ParityError", "tripwires", "fingerprints")


def _carried(seen: Seen, field: str, expected: Seen, *names: str) -> Result:
    """Whether rank 1 has these values of every plan that rank 0 announced, and other ones raise."""
    told = [{name: one[field].get(name) for name in expected} for one in seen["carried"]]
    said = ", ".join(f"{name} {value}" for name, value in told[0].items())
    carried = verdict(told == [expected] * len(ACTIONS), f"announced to rank 1: {said}")
    return all_of(carried, _all_caught(seen, "PlanError", *names))


@judging(calls, word=ENFORCED)
def the_action_travels(seen: Seen) -> Result:
    """Each of three actions that rank 0 announces reaches rank 1; another action on one rank raises on both."""
    told = [one["action"] for one in seen["carried"]]
    carried = verdict(told == list(ACTIONS), f"announced to rank 1: {', '.join(told)}")
    return all_of(carried, _all_caught(seen, "PlanError", "action"))


@judging(calls, word=ENFORCED)
def epochs_travel(seen: Seen) -> Result:
    """Epochs of cache and control reach rank 1 with each plan; another one on one rank raises on both."""
    return _carried(seen, "epochs", {"cache": 1, "control": 5}, "epoch", "control epoch")


@judging(calls, word=ENFORCED)
def phases_are_in_the_plan(seen: Seen) -> Result:
    """Phases, number of calls and of steps, and cache set-up reach rank 1 with each plan; other ones raise on both."""
    phases = {"recompute": False, "num_denoise_steps": 4, "init_cache": False}
    number = _carried(seen, "calls", {"number": 2}, "number")
    return all_of(_carried(seen, "phases", phases, "phase", "steps", "set-up"), number)


@judging(calls, word=ENFORCED)
def steps_are_in_the_plan(seen: Seen) -> Result:
    """The number of denoising steps reaches rank 1 with each plan; another one on one rank raises on both."""
    return _carried(seen, "phases", {"num_denoise_steps": 4}, "steps")


@judging(calls, word=ENFORCED)
def cache_set_up_is_in_the_plan(seen: Seen) -> Result:
    """Whether the cache is set up reaches rank 1 with each plan; a rank that alone sets it up raises on both."""
    return _carried(seen, "phases", {"init_cache": False}, "set-up")


@judging(calls, word=ENFORCED)
def the_plan_is_followed(seen: Seen) -> Result:
    """A plan that rank 0 announces fixes phases and number of calls on the other rank, which derives nothing; fewer or
    more calls than these raise."""
    row = seen["announced"]
    right = row["alike"] == ["ok", "ok"] and row["odd"][1] == "ValueError: followed: True, 2 calls"
    followed = verdict(right, f"rank 1 {row['odd'][1].partition(': ')[2] or row['odd'][1]}")
    return all_of(followed, calls_are_counted(seen))


@judging(calls, word=ENFORCED)
def calls_are_counted(seen: Seen) -> Result:
    """A rank that makes fewer or more calls than planned raises."""
    fewer, more = seen["fewer"], seen["more"]
    right = all(r["alike"] == ["ok", "ok"] and r["odd"][1].startswith("PlanError") for r in (fewer, more))
    return verdict(right, f"{fewer['odd'][1]}; {more['odd'][1]}")


@judging(drift, word=ENFORCED)
def digests_catch_inputs(seen: Seen) -> Result:
    """Every call is compared: an input that differs on one rank raises on both, in each of three calls."""
    each = verdict(seen["every_call"]["odd"] == ["DigestError: calls [0, 1, 2]"] * 2, "of three calls")
    return all_of(_all_caught(seen, "DigestError", "input", "every_call"), each)


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
    """A shard that changed on one rank raises on both, naming the rank, at the next of periodic checks."""
    caught = _all_caught(seen, "FingerprintError", "weight", "periodic")
    return all_of(caught, verdict("after call 3" in _line(seen["periodic"]), "changed in call 2"))


@judging(drift, word=ENFORCED)
def weights_change_only_by_agreement(seen: Seen) -> Result:
    """A change that is not announced, or taken up by one rank alone, raises; one that every rank takes up does not."""
    how = seen["updated"]["odd"]
    agreed = verdict(how == ["ok", "ok"], f"agreed: {how[0]}; not agreed, or by one rank alone")
    alone = _all_caught(seen, "ContractError", "renewed_alone")
    return all_of(agreed, _all_caught(seen, "FingerprintError", "weight"), alone)


@judging(drift, word=ENFORCED)
def both_tripwires_catch(seen: Seen) -> Result:
    """Digests catch an input, fingerprints a weight, that drifts on one rank."""
    return all_of(_all_caught(seen, "DigestError", "input"), _all_caught(seen, "FingerprintError", "weight"))
