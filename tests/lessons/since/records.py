"""Records for the checks on one compile for all ranks: see ledger_records.py."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

RIGHT, ERROR = (
    {"outcomes": ["right"] * 4, "said": ""},
    {"outcomes": ["error"] * 4, "said": "AttributeError: no"},
)
PAIR = {"outcomes": ["right", "right", "refused", "refused"], "said": "guard: '3'"}
AGAIN = {"outcomes": ["right", *["right, compiled again"] * 3], "said": ""}
SUMS = [6.0] * 4
NAMES = ("uneven shards", "a group of its own", "a sub mesh", "slice by dist.get_rank()")


def graphs(name: str, off: int | str = 4, on: int | str = 1) -> Record:
    return {"counts": {name: {"off": off, "on": on}}}


BASE: dict[str, Record] = {
    "one_compile.graphs": {
        "counts": {name: {"off": 4, "on": 1} for name in NAMES},
        "new": True, "default": False, "old_name_is_on": True, "right": True,
        "by_group": {"off": [2.0, 8.0], "on": [2.0, 8.0]},
    },
    "one_compile.carried": {
        "ways": {
            "aot_compile, mesh, off": PAIR, "aot_compile, mesh, on": RIGHT, "aot_compile, DTensor, on": RIGHT,
            "disk cache, mesh, on": RIGHT, "precompile, mesh, on": RIGHT,
        },
        "stores": ["aot_compile", "disk cache", "precompile"], "without_rows": "ran",
    },
    "one_compile.agreeing": {
        "alone": [["(4, 3)"], ["(6, 3)"]], "together": [["(s77, 3)"]] * 2, "mended": [["(s77, 3)"]] * 2,
    },
    "one_compile.one_process": {"total": SUMS, "real": SUMS, "rank": [0.0, 1.0, 2.0, 3.0], "switched": SUMS},
    "one_compile.layers": {"default": False, "backend": "gloo"},
}  # fmt: skip
CASES: dict[str, list[Record]] = {
    "one_compile.coordinates_are_operators": [
        {}, graphs("uneven shards", on=4), graphs("uneven shards", off=1), {"right": False},
    ],
    "one_compile.groups_are_inputs": [
        {}, graphs("a group of its own", on=4), graphs("a group of its own", on="failed: AssertionError"),
        {"by_group": {"on": [2.0, 2.0]}},
    ],
    "one_compile.groups_of_meshes_are_looked_up": [{}, graphs("a sub mesh", on=2), graphs("a sub mesh", off=1)],
    "one_compile.ranks_in_python_stay": [{}, graphs("slice by dist.get_rank()", on=4)],
    "one_compile.off_by_default": [{}, {"default": True}],
    "one_compile.moved_with_its_old_name": [{}, {"old_name_is_on": False}],
    "one_compile.one_graph_runs_on_all": [
        {}, {"ways": {"aot_compile, mesh, on": PAIR}}, {"ways": {"aot_compile, mesh, off": RIGHT}},
    ],
    "one_compile.dtensor_runs_on_all": [{}, {"ways": {"aot_compile, DTensor, on": ERROR}}],
    "one_compile.caches_hit_on_all": [{}, {"ways": {"disk cache, mesh, on": AGAIN}}],
    "one_compile.precompiled_runs_on_all": [{}, {"ways": {"precompile, mesh, on": ERROR}}],
    "one_compile.shards_may_be_empty": [{}, {"without_rows": "RuntimeError: 0 <= -1"}],
    "one_compile.sizes_are_agreed": [
        {}, {"alone": [["(s77, 3)"]] * 2},
        {"together": [["(4, 3)"], ["(6, 3)"]], "mended": [["(4, 3)"], ["(6, 3)"]]},
    ],
    "one_compile.one_process_adds_up": [{}, {"total": [0.0] * 4}],
    "one_compile.every_rank_asks_itself": [{}, {"rank": [0.0] * 4}],
    "one_compile.the_switch_works_in_one_process": [{}, {"switched": "TypeError: incompatible"}],
    "one_compile.torchcomms_is_opt_in": [{}, {"default": True}, {"backend": "torchcomms"}],
}  # fmt: skip
