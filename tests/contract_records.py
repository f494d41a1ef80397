"""Records of the contract's checks: each part catches the odd rank, and in the cases that follow it does not."""

from __future__ import annotations

from typing import Any

from labkit.lessons.symmetry.claims.contract import ACTIONS, VARIABLES

OK = ["ok", "ok"]
GREEN, RED = (
    {"result": "green", "observed": "as expected"},
    {"result": "red", "observed": "TypeError on rank 0"},
)
WITHOUT = {
    "smoke": "hung: rank 1 waits in broadcast", "env": "nobody noticed: rank 0 [0, 2, 2, 3]",
    "compile-gate": "9 graphs, 8 breaks, 11 regions", "first-break": "first break: LOG.warning()",
    "guards": "2 rounds, 2 graphs, 0 breaks, 2 recompiles", "orphan": "still waiting in a store 4 s after",
    "one-dimension": "HealthError on rank 0 and 1: the ranks compiled different things; recompiles: rank 0 0, rank 1 1",
    "preflight": "TypeError on rank 0; rank 1 was left waiting in broadcast", "digest": "nobody noticed: rank 0 [1]",
    "fingerprint": "nobody noticed: rank 0 [1]",
}  # fmt: skip
TOLD = {name: {"on": GREEN, "off": {"result": "red", "observed": said}} for name, said in WITHOUT.items()}


def orphan(silence: float) -> dict[str, Any]:
    return {
        "result": "green",
        "observed": f"watchdog: no heartbeat of the leader for {silence} s, exit code 17",
    }


UNTOLD = [
    {"on": RED},
    {"off": {"result": "green"}},
    {"off": RED},
]  # the last one: an error that has to do with nothing


def caught(error: str) -> dict[str, Any]:
    return {"alike": OK, "odd": [error, error]}


def alone(error: str, rank_0: str = "ok") -> dict[str, Any]:
    """Only the odd rank raises."""
    return {"alike": OK, "odd": [rank_0, error]}


PARITY = caught(
    "ParityError: 1 of 1 settings differ between ranks:\n    flag a: rank 0 'usual', rank 1 'other'"
)
PLAN = caught("PlanError: the ranks plan different calls:\n    number of calls: rank 0 2, rank 1 3")
CHANGED = caught("FingerprintError: shards changed since they were fingerprinted: rank 1: w")
PLANNED = {
    "phases": {"recompute": False, "num_denoise_steps": 4, "init_cache": False},
    "epochs": {"cache": 1, "control": 5},
    "calls": {"number": 2},
}
MISSED = {"odd": OK}
WOLF = {"alike": ["ParityError: 1 of 1", "ParityError: 1 of 1"]}  # it raises where nothing differs
ONE_ONLY = {"odd": ["ok", "ParityError: 1 of 1"]}

BASE = {
    "contract.settings": {
        **{
            name: caught(
                f"ParityError: 1 of 8 settings differ between ranks:\n    env {word}: rank 0 1, rank 1 0"
            )
            for name, word in VARIABLES.items()
        },
        **dict.fromkeys(("fingerprints", "pipeline", "effective", "again", "tripwires", "precision"), PARITY),
        "uncompiled": caught(
            "HealthError: the ranks compiled different things:\n    graphs: rank 0 1, rank 1 0"
        ),
        "requested": {"alike": OK, "odd": OK},
        "kernels": ["flash", "math"],
        "for_the_log": [f"rank {rank}: {{'attention in effect': \"'flash'\"}}" for rank in range(2)],
        "reloaded": CHANGED,
        "reloaded by all": CHANGED["odd"],
    },
    "contract.calls": {
        **dict.fromkeys(("action", "epoch", "control epoch", "phase", "number", "steps", "set-up"), PLAN),
        "carried": [{**PLANNED, "action": action} for action in ACTIONS],
        "fewer": alone("PlanError: 1 calls were made, planned were 2"),
        "more": alone("PlanError: call 3 is 'call', planned were 2 calls"),
        "announced": alone("ValueError: followed: True, 2 calls"),
    },
    "contract.drift": {
        "input": caught(
            "DigestError: call 0: 1 of 1 inputs differ between ranks:\n    x: rank 0 ab, rank 1 cd"
        ),
        "warmup": {"alike": OK, "odd": OK},
        "weight": CHANGED,
        "every_call": caught("DigestError: calls [0, 1, 2]"),
        "periodic": caught("FingerprintError: after call 3: shards changed: rank 1: w"),
        "renewed_alone": caught("ContractError: the ranks are not at the same check"),
        "updated": {"alike": OK, "odd": OK},
        "warmup_plan": PLAN,
    },
    "endings.ending": {
        "together": {
            "told": ["ContractError: rank 1 failed: out of memory", "MemoryError: out of memory"],
            "silent": ["waits in all_reduce", "MemoryError: out of memory"],
        },
        "orphan": {"on": 17, "off": None},
    },
    "suite.tests": TOLD
    | {
        "first-break": {
            "on": {"result": "green", "observed": "first break: kv = cache[:, :4]"},
            "off": TOLD["first-break"]["off"],
        },
        "one-dimension": {
            "on": {"result": "green", "observed": "2 graphs, 0 breaks, 1 recompiles"},
            "off": TOLD["one-dimension"]["off"],
        },
        "orphan": {"on": orphan(1.2), "off": TOLD["orphan"]["off"]},
    },
    "suite.warming": {
        "lockstep": [[3, 3], [3, 3]],
        "even": [[2, 2], [2, 2]],
        "warmed": [0, 0],
        "cold": [0, 1],
        "gate": "HealthError on 2 ranks",
        "no_gate": "hung",
        "served": {"as served": [0, 0], "other rows": [1, 1], "other flag": [1, 1]},
        "whole": [1, 2],
        "regions": [1, 1],
        "path": [[True, 3, True, 0], [True, 3, True, 0]],
        "planned": {"alike": ["Plan", "Plan"], "apart": ["PlanError", "PlanError"]},
    },
    "suite.patience": {"short_late": "timed out", "conservative_late": "right", "absent": "timed out"},
}


def one(row: str) -> list[dict[str, Any]]:
    """The ways in which a part that has to catch one row can fail."""
    return [{}, {row: MISSED}, {row: WOLF}, {row: ONE_ONLY}]


def lost(field: str, value: dict[str, Any]) -> list[dict[str, Any]]:
    """A plan that reaches rank 1 with something else in a field."""
    return [{"carried": [{**PLANNED, "action": "infer", field: value}] * 3}]


CASES: dict[str, list[dict[str, Any]]] = {
    "contract.topology_is_compared": [
        *one("tensor_parallel"),
        *({name: MISSED} for name in ("world_size", "plan", "pp_enabled")),
    ],
    "contract.compile_settings_are_compared": [
        *one("compile"),
        {"fullgraph": MISSED},
        {"compile": PARITY},  # something else differs
        {"uncompiled": MISSED},
    ],
    "contract.backend_flags_are_compared": [*one("kv_bias_backend"), {"effective": MISSED}],
    "contract.what_changes_graphs_or_kernels_is_compared": [
        *one("compile"),
        *(
            {name: MISSED}
            for name in ("fullgraph", "compile_pipeline", "kv_bias_backend", "effective", "precision")
        ),
    ],
    "contract.the_backend_in_effect_is_told_and_compared": [
        *one("effective"),
        {"for_the_log": ["rank 0: {'attention in effect': \"'flash'\"}", ""]},
        {"for_the_log": [f"rank {rank}: {{'flag attention': \"'auto'\"}}" for rank in range(2)]},
    ],
    "contract.the_backend_in_effect_counts": [
        *one("effective"),
        {"requested": PARITY},
        {"kernels": ["flash", "flash"]},
    ],
    "contract.parity_can_be_checked_again": [*one("again"), {"kernels": ["flash", "flash"]}],
    "contract.the_pipeline_is_pinned": [*one("pipeline"), {"reloaded": MISSED}, {"reloaded by all": OK}],
    "contract.whether_the_pipeline_is_compiled_is_compared": one("compile_pipeline"),
    "contract.steps_are_in_the_plan": [*one("steps"), *lost("phases", {"num_denoise_steps": 3})],
    "contract.cache_set_up_is_in_the_plan": [*one("set-up"), *lost("phases", {"init_cache": True})],
    "contract.tripwires_are_compared": [*one("tripwires"), {"fingerprints": MISSED}],
    "contract.the_action_travels": [*one("action"), {"carried": [{**PLANNED, "action": "infer"}] * 3}],
    "contract.epochs_travel": [*one("epoch"), {"control epoch": MISSED}, *lost("epochs", {"cache": 1})],
    "contract.phases_are_in_the_plan": [
        *one("phase"),
        *({name: MISSED} for name in ("number", "steps", "set-up")),
        *lost("phases", {}),
        *lost("calls", {"number": 3}),
    ],
    "contract.the_plan_is_followed": [
        {},
        {"announced": MISSED},
        {"announced": {"odd": ["ok", "ValueError: followed: False, 2 calls"]}},
        {"announced": WOLF},
        {"fewer": MISSED},
        {"more": MISSED},
    ],
    "contract.calls_are_counted": [{}, {"fewer": MISSED}, {"more": MISSED}, {"more": WOLF}],
    "contract.digests_catch_inputs": [
        *one("input"),
        {"every_call": MISSED},
        {"every_call": caught("DigestError: calls [0, 2]")},
    ],
    "contract.warmup_has_no_digest": [
        {"claimed": "-1"},
        *({"claimed": "-1"} | patch for patch in one("input")[1:]),
        {"claimed": "-1", "warmup": caught("DigestError: call -1: 1 of 1")},
        {"claimed": "-1", "warmup_plan": MISSED},
        {"claimed": "0"},
    ],
    "contract.fingerprints_catch_weights": [
        *one("weight"),
        {"periodic": MISSED},
        {"periodic": caught("FingerprintError: after call 5: w")},
    ],
    "contract.weights_change_only_by_agreement": [
        *one("weight"),
        {"updated": caught("FingerprintError: w")},
        {"renewed_alone": MISSED},
    ],
    "contract.both_tripwires_catch": [*one("input"), {"weight": MISSED}],
    "endings.ranks_fail_together": [
        {},
        {"together": {"told": ["Absent: rank 1 did not come", "MemoryError: out of memory"]}},
        {"together": {"told": ["waits in all_reduce", "MemoryError: out of memory"]}},
        {"together": {"silent": ["ContractError: no", "MemoryError: out of memory"]}},
    ],
    "endings.an_orphan_leaves": [
        {},
        {"orphan": {"on": 1}},
        {"orphan": {"on": 0, "off": 0}},
        {"orphan": {"off": 17}},
    ],
    "endings.watchdogs_and_tripwires_crash": [
        {},
        {"orphan": {"on": 1}},
        {"drift": {"input": MISSED}},
        {"drift": {"weight": MISSED}},
    ],
    "suite.a_worker_leaves_within_the_window": [
        {},
        *({"orphan": patch} for patch in UNTOLD),
        *({"orphan": {"on": orphan(silence)}} for silence in (30.0, 0.3)),
    ],
    "suite.served_shapes_and_flags_are_warmed": [
        {},
        {"served": {"as served": [0, 1]}},
        {"served": {"other rows": [0, 0]}},
        {"served": {"other flag": [0, 0]}},
    ],
    "suite.the_control_plane_runs": [{}, *({"smoke": patch} for patch in UNTOLD)],
    "suite.a_variable_that_differs_fails_fast": [{}, *({"env": patch} for patch in UNTOLD)],
    "suite.the_receiver_goes_on": [{}, *({"preflight": patch} for patch in UNTOLD)],
    "suite.served_shapes_are_warmed": [{}, *({"guards": patch} for patch in UNTOLD)],
    "suite.a_dimension_that_varies_recompiles_once": [
        {},
        *({"one-dimension": patch} for patch in UNTOLD),
        {"one-dimension": {"on": {"observed": "3 graphs, 0 breaks, 2 recompiles"}}},
        {"one-dimension": {"on": {"observed": "3 graphs, 0 breaks, 1 recompiles"}}},
    ],
    "suite.the_compile_gate_shows_a_break": [{}, *({"compile-gate": patch} for patch in UNTOLD)],
    "suite.a_changed_broadcast_is_caught": [{}, *({"digest": patch} for patch in UNTOLD)],
    "suite.a_changed_shard_is_caught": [{}, *({"fingerprint": patch} for patch in UNTOLD)],
    "suite.the_first_break_is_named": [
        {},
        *({"first-break": patch} for patch in UNTOLD),
        {"first-break": {"on": GREEN}},
        {"first-break": {"off": {"observed": "first break: kv = cache[:, :4]"}}},
    ],
    "suite.warmup_is_in_lockstep": [
        {},
        {"lockstep": [[2, 2], [2, 2]]},
        {"lockstep": [[3, 3], [4, 4]]},
        {"even": [[3, 3], [3, 3]]},
    ],
    "suite.warmup_evens_out": [{}, {"warmed": [0, 1]}, {"cold": [0, 0]}],
    "suite.warmup_takes_the_path": [
        {},
        {"path": [[True, 3, True, 0], [False, 3, True, 0]]},
        {"path": [[True, 3, True, 0], [True, 2, True, 0]]},
        {"path": [[True, 3, True, 0], [True, 3, False, 0]]},
        {"path": [[True, 3, True, 1], [True, 3, True, 0]]},
        {"path": []},
    ],
    "suite.the_gate_is_a_quick_error": [
        {},
        {"gate": "served"},
        {"gate": "Absent on 2 ranks"},
        {"no_gate": "HealthError on 2 ranks"},
        {"no_gate": "finished"},
    ],
    "suite.warmup_calls_are_planned": [
        {},
        {"planned": {"apart": ["PlanError", "Plan"]}},
        {"planned": {"apart": ["Plan", "Plan"]}},
        {"planned": {"alike": ["PlanError", "PlanError"]}},
    ],
    "suite.regions_leave_less_room": [{}, {"whole": [1, 1]}, {"regions": [1, 2]}, {"regions": [0, 0]}],
    "suite.conservative_timeouts_pay": [
        {},
        {"short_late": "right"},
        {"conservative_late": "timed out"},
        {"absent": "right"},
    ],
}

BASE["endings.ending"]["drift"] = BASE["contract.drift"]
