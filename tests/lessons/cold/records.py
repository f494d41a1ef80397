"""Records for the checks on cold and warm: see ledger_records.py."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

MISSED = [{"hit": 0, "miss": 2, "right": True}] * 2
FOUND = [{"hit": 2, "miss": 0, "right": True}] * 2
OVER = "the warmup took 0.3 s and may take 0.1 s; rank 1 took longest, 0.3 s of them on preparing"
BASE: dict[str, Record] = {
    "cold.ahead": {
        "precompiled": {"right": True, "graphs": 0}, "packaged": {"right": True, "graphs": 0},
        "calls": ["aoti_torch_cpu_mm_out"],
        "binaries": {"aot_compile": True, "precompile": True}, "stable": {"aot_compile": True, "precompile": True},
        "foreign": [], "remote": {"fx_graph_remote_cache": None, "redis": True},
    },
    "cold.together": {
        "graphs": [1, 1], "backend_s": [0.01, 0.5], "first_s": [0.6, 0.6],
        "span": [[10.0, 10.1], [10.0, 10.6]],
    },
    "cold.parts": {
        "block": {"graphs": 1, "breaks": 0, "recompiles": 0, "right": True},
        "whole": {"graphs": 4, "breaks": 3, "recompiles": 2, "right": True},
    },
    "cold.once": {
        "shipped": True, "own": MISSED, "other's": FOUND, "empty": MISSED, "process": [7, 8], "passes": [[7], [8]],
    },
    "cold.served": {
        "cold": {"compiling": 1, "running": 50, "first_s": 0.1, "median_s": 0.001},
        "warmed": {"compiling": 0, "running": 50, "first_s": 0.001, "median_s": 0.001},
        "ahead": {"compiling": 0, "right": True, "first_s": 0.001},
        "generous": "warm, skew 0.3 s", "tight": OVER,
    },
}  # fmt: skip
CASES: dict[str, list[Record]] = {
    "cold.there_are_remote_caches": [
        {}, {"remote": {"redis": False}}, {"remote": {"fx_graph_remote_cache": None, "redis": False}},
    ],
    "cold.packages_run_elsewhere": [{}, {"packaged": {"right": False}}, {"packaged": {"graphs": 1}}, {"calls": []}],
    "cold.precompiled_functions_run_elsewhere": [
        {}, {"precompiled": {"right": False}}, {"precompiled": {"graphs": 1}},
    ],
    "cold.precompiled_binaries_use_the_stable_interface": [
        {}, {"binaries": {"aot_compile": False, "precompile": False}}, {"stable": {"precompile": False}},
        {"foreign": ["_ZN2at4dataEv"]}, {"calls": []},
    ],
    "cold.the_stable_part_compiles_once": [
        {}, *({"block": {name: n}} for name, n in (("graphs", 2), ("breaks", 1), ("recompiles", 1), ("right", False))),
        *({"whole": {name: 0}} for name in ("breaks", "recompiles")),
    ],
    "cold.serving_needs_preparation": [
        {}, {"cold": {"first_s": 0.002}}, {"warmed": {"compiling": 1}}, {"ahead": {"compiling": 1}},
        {"cold": {"compiling": 0}}, {"warmed": {"first_s": 0.09}}, {"ahead": {"first_s": 0.09}},
    ],
    "cold.ranks_compile_at_the_same_time": [{}, {"span": [[10.0, 10.1], [10.2, 10.6]]}, {"graphs": [1, 0]}],
    "cold.peers_wait_for_a_compile": [{}, {"first_s": [0.02, 0.6]}, {"backend_s": [0.5, 0.5]}],
    "cold.compiling_once_is_up_to_you": [{}, {"own": [MISSED[0], FOUND[0]]}, {"shipped": False}],
    "cold.another_process_finds_it_in_the_cache": [
        {}, {"other's": MISSED}, {"own": FOUND}, {"empty": FOUND},
        {"other's": [FOUND[0], {"hit": 2, "miss": 0, "right": False}]},
    ],
    "cold.ranks_compile_where_they_run": [
        {}, {"passes": [[7], [9]]}, {"passes": [[7], []]}, {"own": [MISSED[0], FOUND[0]]},
        {"process": [7, 7], "passes": [[7], [7]]},
    ],
    "cold.a_warmup_takes_compiling_out_of_serving": [
        {}, {"warmed": {"compiling": 1}}, {"cold": {"compiling": 0}}, {"warmed": {"running": 0}},
    ],
    "cold.a_warmup_or_a_file_made_ahead_will_do": [
        {}, {"warmed": {"compiling": 1}}, {"cold": {"compiling": 0}}, {"ahead": {"compiling": 1}},
        {"ahead": {"right": False}},
    ],
    "cold.a_cold_start_costs_compile_time": [
        {}, {"cold": {"compiling": 0}}, {"warmed": {"compiling": 1}}, {"cold": {"first_s": 0.002}},
    ],
    "cold.a_warmup_can_be_held_to_a_budget": [{}, {"tight": "warm, skew 0.3 s"}, {"generous": OVER}],
}  # fmt: skip
