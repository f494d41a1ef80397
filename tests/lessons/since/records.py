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
PARTS = {
    "sum": [[6.0]] * 4,
    "all_gather": [[0.0, 1.0, 2.0, 3.0]] * 4,
    "reduce_scatter": [[6.0], [10.0], [14.0], [18.0]],
}
NAMES = ("uneven shards", "a group of its own", "a sub mesh", "slice by dist.get_rank()")


def graphs(name: str, off: int | str = 4, on: int | str = 1) -> Record:
    return {"counts": {name: {"off": off, "on": on}}}


BASE: dict[str, Record] = {
    "one_compile.graphs": {
        "counts": {name: {"off": 4, "on": 1} for name in NAMES},
        "calls": {
            "uneven shards": ["_runtime_compute_coordinate_on_dim"], "a group of its own": ["_opaque_obj0"],
            "a sub mesh": ["mesh_get_process_group"], "slice by dist.get_rank()": [],
        },
        "codes": {"none": [4, 1], "all": [4, 4]},
        "new": True, "default": False, "old_name_is_on": True, "new_name_is_on": True, "right": True,
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
    "one_compile.one_process": {
        "parts": PARTS, "real": PARTS, "rank": [0.0, 1.0, 2.0, 3.0], "switched": SUMS, "takes_a_name": False,
    },
    "one_compile.layers": {"default": False, "group": "ProcessGroupGloo"},
}  # fmt: skip
CASES: dict[str, list[Record]] = {
    "one_compile.coordinates_are_operators": [
        {}, graphs("uneven shards", on=4), graphs("uneven shards", off=1), {"right": False},
        {"calls": {"uneven shards": []}},
    ],
    "one_compile.groups_are_inputs": [
        {}, graphs("a group of its own", on=4), graphs("a group of its own", on="failed: AssertionError"),
        {"calls": {"a group of its own": ["'2'"]}}, {"calls": {"a group of its own": ["_opaque_obj0", "'2'"]}},
        {"by_group": {"on": [2.0, 2.0]}},
    ],
    "one_compile.groups_of_meshes_are_looked_up": [
        {}, graphs("a sub mesh", on=2), graphs("a sub mesh", off=1), {"calls": {"a sub mesh": ["_opaque_obj0"]}},
    ],
    "one_compile.buckets_hold_the_rank": [{}, {"codes": {"all": [4, 1]}}, {"codes": {"none": [4, 4]}}],
    "one_compile.ranks_in_python_stay": [{}, graphs("slice by dist.get_rank()", on=4)],
    "one_compile.off_by_default": [{}, {"default": True}],
    "one_compile.moved_with_its_old_name": [{}, {"old_name_is_on": False}, {"new_name_is_on": False}],
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
    "one_compile.one_process_adds_up": [
        {}, *({"parts": {name: [[0.0]] * 4}} for name in ("sum", "all_gather", "reduce_scatter")),
    ],
    "one_compile.every_rank_asks_itself": [{}, {"rank": [0.0] * 4}],
    "one_compile.the_switch_works_in_one_process": [
        {}, {"switched": "TypeError: incompatible"}, {"takes_a_name": True},
    ],
    "one_compile.torchcomms_is_opt_in": [{}, {"default": True}, {"group": "_BackendWrapper"}],
}  # fmt: skip
