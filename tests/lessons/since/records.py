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
        "codes": {"none": [4, 1], "all": [4, 4], "without offsets": 1}, "offsets": [[0], [20], [40], [60]],
        "kept": {
            "uneven shards": [{"tensors": [[0, 1, 2, 3]], "group": "an input", "starts": ["a symbol", 0]}] * 4,
            "a group of its own": [{"tensors": [], "group": "a constant ProcessGroup", "starts": []}] * 4,
            "a sub mesh": [{"tensors": [], "group": "an input", "starts": []}] * 4,
            "slice by dist.get_rank()": [{"tensors": [], "group": "a name", "starts": [rank]} for rank in range(4)],
        },
        "torch": "2.15.0", "as it is": 4,
        "new": True, "default": False, "old_name_is_on": True, "new_name_is_on": True, "right": True,
        "by_group": {"off": [2.0, 8.0], "on": [2.0, 8.0]},
    },
    "one_compile.carried": {
        "ways": {
            "aot_compile, mesh, off": PAIR, "aot_compile, mesh, on": RIGHT, "aot_compile, DTensor, on": RIGHT,
            "disk cache, mesh, on": RIGHT, "precompile, mesh, on": RIGHT,
            **{f"{way}, off": PAIR for way in ("aot_compile, DTensor", "disk cache, mesh", "precompile, mesh")},
        },
        "stores": ["aot_compile", "disk cache", "precompile"], "torch": "2.15.0",
    },
    "one_compile.agreeing": {
        "alone": [["(4, 3)"], ["(6, 3)"]], "together": [["(s77, 3)"]] * 2, "mended": [["(s77, 3)"]] * 2,
    },
    "one_compile.one_process": {
        "parts": PARTS, "real": PARTS, "switched": PARTS, "takes_a_name": False,
        "coordinate": [0.0, 1.0, 2.0, 3.0],
    },
    "one_compile.layers": {"default": False, "group": "ProcessGroupGloo"},
}  # fmt: skip
CASES: dict[str, list[Record]] = {
    "one_compile.coordinates_are_operators": [
        {}, graphs("uneven shards", on=4), graphs("uneven shards", off=1), {"right": False},
        {"calls": {"uneven shards": []}},
        {"kept": {"uneven shards": [{"tensors": [[rank]]} for rank in range(4)]}},  # a constant of each rank
    ],
    "one_compile.groups_are_inputs": [
        {}, *({"kept": {"uneven shards": [{"group": group}] * 4}} for group in ("a constant DeviceMesh", "a name")),
        {"kept": {"uneven shards": [{"group": "an input"}, *[{"group": "a name"}] * 3]}},
    ],
    "one_compile.groups_of_meshes_are_looked_up": [
        {}, graphs("a sub mesh", on=2), graphs("a sub mesh", off=1), {"calls": {"a sub mesh": ["_opaque_obj0"]}},
        {"kept": {"a sub mesh": [{"group": "a constant DeviceMesh"}] * 4}},
        {**graphs("a sub mesh", on=2), "torch": "2.11.0"},
    ],
    "one_compile.buckets_hold_the_rank": [
        {}, {"codes": {"all": [4, 1]}}, {"codes": {"none": [4, 4]}}, {"codes": {"all": [0, 0]}},
        {"codes": {"without offsets": 4}}, {"offsets": [[0]] * 4}, {"offsets": [[]] * 4},  # texts that differ otherwise
    ],
    "one_compile.ranks_in_python_stay": [
        graphs("slice by dist.get_rank()", on=4), graphs("slice by dist.get_rank()", on=1),
        {"kept": {"slice by dist.get_rank()": [{"starts": ["a symbol"]}] * 4}},  # they differ by something else
    ],
    "one_compile.off_by_default": [{}, {"default": True}, {"as it is": 1}, graphs("uneven shards", off=1, on=4)],
    "one_compile.moved_with_its_old_name": [{}, {"old_name_is_on": False}, {"new_name_is_on": False}],
    "one_compile.one_graph_runs_on_all": [
        {}, {"ways": {"aot_compile, mesh, on": PAIR}}, {"ways": {"aot_compile, mesh, off": RIGHT}},
    ],
    "one_compile.dtensor_runs_on_all": [{}, {"ways": {"aot_compile, DTensor, on": ERROR}},
        {"ways": {"aot_compile, DTensor, off": RIGHT}}],
    "one_compile.caches_hit_on_all": [{}, {"ways": {"disk cache, mesh, on": AGAIN}},
        {"ways": {"disk cache, mesh, off": RIGHT}}],
    "one_compile.precompiled_runs_on_all": [{}, {"ways": {"precompile, mesh, on": ERROR}},
        {"ways": {"precompile, mesh, off": RIGHT}}],
    "one_compile.sizes_are_agreed": [
        {}, {"alone": [["(s77, 3)"]] * 2},
        {"together": [["(4, 3)"], ["(6, 3)"]], "mended": [["(4, 3)"], ["(6, 3)"]]},
    ],
    "one_compile.one_process_adds_up": [
        {}, *({"parts": {name: [[0.0]] * 4}} for name in ("sum", "all_gather", "reduce_scatter")),
    ],
    "one_compile.the_switch_works_in_one_process": [
        {}, {"switched": "TypeError: incompatible"}, {"takes_a_name": True}, {"switched": {"all_gather": [[0.0]] * 4}},
        {"coordinate": [0.0] * 4},
    ],
    "one_compile.torchcomms_is_opt_in": [{}, {"default": True}, {"group": "_BackendWrapper"}],
}  # fmt: skip
