"""For every check a record in which its claim holds, and records in which it does not.

BASE holds, by probe, what most of its judges take for a claim that holds. A case is (patch in which the claim holds,
then patches of that record in each of which it does not), so that every part of a judge's condition can fail.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import contract_records
import gpu_records
from lessons.cold import records as cold_records
from lessons.since import records as since_records

from labkit.lessons.compiled_streams.claims.stream_offload import ASIDE
from labkit.lessons.functional.claims.autograd import RIGHT as GRADIENTS
from labkit.lessons.functional.claims.autograd import SUPPORTED
from labkit.lessons.functional.claims.tracing import CLASSIC, FUNCTIONAL
from labkit.lessons.groups.claims.released import SENTENCES
from labkit.lessons.reading.claims.logs import HIDDEN_AT, PRINT_AT
from labkit.lessons.symmetry.claims.symmetry import ODD, RIGHT
from labkit.study.catalog import CHECKS
from labkit.study.claims import load

Record = dict[str, Any]
KEPT_CALLS = ["_c10d_functional.all_reduce", "_c10d_functional.wait_tensor"]
KEPT: Record = {"one_graph": True, "same": True, "graphs": 1, "why": "", "in_place": 0}
KEPT |= {"argument_types": ["Node", "str"], "waited": True}

BROKEN = {**KEPT, "one_graph": False, "graphs": 2, "why": "Unsupported: hidden", "calls": ["aten.mul.Tensor"]}
RESULT = {"type": "AsyncCollectiveTensor", "is_tensor": True, "right": True, "new": True, "input_left": True}
FASTER = {"outcome": "faster", "ratio": 0.5, "low": 0.4, "high": 0.6, "label": "shm · cpu"}
SLOWER = {"outcome": "slower", "ratio": 2.0, "low": 1.9, "high": 2.1, "label": "shm · cpu"}
TENFOLD = {**SLOWER, "ratio": 10.0, "low": 9.0, "high": 11.0}
TELLS_NOTHING = {"outcome": "cannot tell", "ratio": 1.0, "low": 0.5, "high": 2.0, "label": "shm · cpu"}
ALIKE = {**TELLS_NOTHING, "low": 0.97, "high": 1.04}
NONE_LEFT = {**TELLS_NOTHING, "low": 0.98, "high": 1.01}
NORM: Record = {"errors": {"reduced": 1e-7, "alone": 0.3, "compiled": 1e-7}, "graphs": 1, "reductions": 1}
COUNTS_A = {"at_collective": 0, "regions": 0, "breaks": 0, "graphs": 0, "collectives": 8}
COUNTS_B = {"at_collective": 8, "regions": 22, "breaks": 16, "graphs": 9}
COUNTS_C = {"at_collective": 0, "regions": 1, "breaks": 0, "graphs": 1, "collectives": 8}
MUTATED: list[Record] = [
    {"name": "mul", "does": "aten.mul.Tensor", "takes": ["x"], "writes": False},
    {"name": "add", "does": "aten.add.Tensor", "takes": ["mul"], "writes": False},
    {"name": "sin", "does": "aten.sin.default", "takes": ["add"], "writes": False},
    {"name": "back", "does": "aten.copy_.default", "takes": ["x", "mul"], "writes": True},
]
BROKE = [
    f"[0/0] [__graph_breaks] Graph break in user code at <string>:{PRINT_AT}",
    "[0/0] [__graph_breaks]   Explanation: Dynamo does not know how to trace builtin operator `print`",
    f"[1/0] [__graph_breaks] Graph break in user code at <string>:{HIDDEN_AT}",
    "[1/0] [__graph_breaks]   Explanation: Skip calling a function under `torch.compiler.disable`",
]
SHOWN = [
    f"[{part}] [__graph_code] {code}"
    for part, code in (("0/0_1", "x.sin()"), ("1/0", "y.cos()"), ("0/1", "x.sin()"), ("1/1", "y.cos()"))
]
GUARDED = [
    f"[{n}/{m}] [__guards] check_tensor(x, size=[{size}])" for n in (0, 1) for m, size in enumerate("4N")
]
HUNG, DONE = {"how": "hung", "waits": ["all_reduce", "Python"]}, {"how": "finished"}
GATHERED = {"how": "finished", "values": [[48, 12, 112]] * 2}
PARTED = {"how": "hung", "waits": ["all_reduce", "all_gather"]}
GROUPS = [{"dp": [r % 4, r % 4 + 4], "tp": [4 * (r // 4) + i for i in range(4)]} for r in range(8)]


BESIDE = {"beside": "joined"}
FIRST = {f"default_pg/0//cpu//0/{rank}": f"127.0.0.1:400{rank}" for rank in range(2)}
NEW = {f"default_pg/0//1//cpu//0/{rank}": f"127.0.0.1:500{rank}" for rank in range(2)}
EVEN_ROWS = {"4": {"into": ["2x8"], "rows": 4}, "5": {"into": ["3x8"], "rows": 5}}
ODD_ROWS = {"4": {"into": ["2x8"], "rows": 4}, "5": {"into": ["2x8"], "rows": 4}}
KEPT_SYNC = "control_deps(synchronize_stream)"
STAGE, LAYERS = [["embedding", "rms_norm"]], [["matmul", "all_reduce", "wait_tensor"]]
OWN_GRAPHS = [{"branch": n, "number": [2 + r], "shape": [[4 + r]]} for r, n in enumerate(("sin", "cos"))]
DIVERGED = [f"{name}_branch" for name in ("shape", "flag", "data")]
NOT_ALIKE = [
    {"shape_alike": {"values": [[8, 8, [1]]] * 2}}, {"flag_alike": {**HUNG, "values": None}},
    {"flag_alike": {"values": [[8, 32, []]] * 2}},  # nothing was compiled
]  # fmt: skip
STUCK = {"how": "hung", "waits": ["Python", "Python"]}
WRONG_PLACES = [
    *({name: DONE} for name in DIVERGED), {"shape_branch": {"how": "failed"}}, *NOT_ALIKE, {"data_branch": STUCK},
    {"nobody_odd": {"values": [{**RIGHT, "data_branch": 4}] * 2}}, {"nobody_odd": {"how": "failed", "values": None}},
]  # fmt: skip
RECOMPILED = [
    {"recompile": DONE}, {"recompile": STUCK}, {"recompile of both": HUNG},
    {"recompile of both": {"values": [[8, 40, []]] * 2}},
]  # fmt: skip
SKIPPED = [[0.0, 1.0, 2.0, 3.0], [[2], [3], [4], [5]]]  # what ranks have where nothing was looked at
UNEVEN = {"eager": EVEN_ROWS, "compiled": EVEN_ROWS}


def op(placement: str, right: bool = True, **collectives: int) -> Record:
    return {"placement": placement, "collectives": collectives, "right": right, "type": "DTensor"}


def node(op: str, stream: int | None = None, *takes: str, come: tuple = (), args: tuple = ()) -> Record:
    made = [0] * len(come)
    return {
        "op": op,
        "stream": stream,
        "takes": list(takes),
        "from": list(come),
        "args": list(args),
        "made": made,
    }


def sync(word: str, *args: int, held: bool = True) -> Record:
    return node(f"control_deps({word})" if held else word, args=args)


def schema(name: str, *kinds: str) -> str:
    words = ("waiting_stream", "stream") if name == "wait_stream" else ("event", "stream")
    given = (f"{kind} {word}_index" for kind, word in zip(kinds, words, strict=True))
    return f"streams::{name}({', '.join(given)}) -> ()"


def triton(stream: str, does: str) -> list[str]:
    return [stream, f"triton_poi_fused_{does.replace(' ', '_')}_0", does]


# a backward pass whose sum on one stream is used there, and then on another one
def summed(on: str = "s2", first: str = "s2", then: str = "s1") -> list[list[Any]]:
    return [
        ["mul", "kernel", "mul.Tensor", on, [], []], ["add_1", "kernel", "add.Tensor", on, ["mul"], []],
        ["r1", "record_event", "record_event", "default", ["add_1"], ["e4", on]],
        ["free", "sync_dealloc", "sync_dealloc", "default", ["mul"], ["e5", on]],
        ["mul_2", "kernel", "mul.Tensor", first, ["add_1"], []],
        ["w1", "wait_event", "wait_event", "default", [], ["e4", then]],
        ["tanh", "kernel", "tanh_backward", then, ["add_1"], []],
    ]  # fmt: skip


def without(rows: list[list[Any]], *names: str) -> list[list[Any]]:
    return [row for row in rows if row[0] not in names]


def own_break(alike: list[list[int]], broken: list[list[int]], value: int = 8) -> Record:
    return {"alike": {"counts": alike, "value": 8}, "break": {"counts": broken, "value": value}}


def driven(mesh: list[str], world: str) -> list[Record]:
    rows = zip((0, 1, 1), ([1, 2], [4, 8], [4, 8]), mesh, strict=True)
    return [{"graphs": g, "values": v, "in_the_mesh": said, "in_the_world": world} for g, v, said in rows]


RELOADS = [
    ["in_1", "reload", ["off_1"], False],
    ["w_1", "wait", ["in_1"], False],
    ["in", "reload", ["off"], False],
    ["mm_3", "kernel", ["w_1"], True],
    ["w", "wait", ["in"], False],
    ["mm_4", "kernel", ["w"], True],
]
BASE: dict[str, Record] = {
    "collectives.eager": {
        "inplace_value": 3.0, "inplace_same_memory": True, "inplace_returns": "NoneType", "async_returns": "Work",
        "async_is_tensor": False, "functional_type": "AsyncCollectiveTensor", "functional_same_memory": False,
        "group_returns": "Work", "gather": {"values": [1.0, 2.0], "same_memory": True, "async_returns": "Work"},
        "family": {name: dict(RESULT) for name in ("all_reduce", "all_gather", "broadcast")},
        "wait_same_memory": True, "wait_same_object": True, "raw_is_tensor": True,
        "early": ["AsyncCollectiveTensor", True, 1.0], "early_then": 3.0,
        "before_wait": 1.0, "after_wait_ignored": 3.0, "gate_same_object": True, "gate_value": 3.0,
    },
    "tracing.traced": {
        **{name: {**KEPT, "calls": [*KEPT_CALLS, "aten.copy"]} for name in CLASSIC},
        **{name: {**KEPT, "calls": KEPT_CALLS} for name in FUNCTIONAL},
        **{name: BROKEN for name in ("all_reduce_async", "broadcast", "barrier", "disabled")},
        "disabled": {**BROKEN, "ran_compiled": [False, False]},
        "all_reduce_async": {**BROKEN, "why": "Unsupported: async_op=True"},
    },
    "tracing.handed_over": {
        "work": "Unsupported: a method", "group": "Unsupported: a group", "by_group": [0, 0, 0], "plain": "",
        "sums": [3.0, 3.0, 2.0],
    },
    "gates.decided": {
        "rows": {name: {"same code": "no", "gate": "yes"} for name in ("all_reduce sum", "broadcast")},
    },
    "autograd.gradients": {
        **GRADIENTS, "broadcast": [2.0] * 4, "compiled": [22.0] * 4, "avg": [11.0] * 4,
        **{op: "RuntimeError: refused" for op in ("max", "min", "product")},
    },
    "functional.without_a_group": {
        "initialized": False, "errors": {}, "compiled": {"aot_eager": "", "inductor": ""},
        "shapes": {"all_reduce": [8], "all_gather_into_tensor": [64], "reduce_scatter_tensor": [1]},
    },
    "functional.frontends": {
        "errors": {}, "sums": {name: [3.0, 3.0] for name in ("a", "b", "c", "d", "e", "f")},
        "of_dtensor": {"c10d_functional.all_reduce": 1},
    },
    "functional.operators": {
        name: {"arguments": ["Tensor", "str"], "returns": ["Tensor"], "kernel": True, "mutates": False,
               "names": ["input"]}
        for name in (*CLASSIC, "all_to_all_single", "broadcast", "wait_tensor")
    },
    "functional.source": {
        "file": "_functional_collectives.py",
        "defined": ["all_reduce", "wait_tensor", "AsyncCollectiveTensor", "broadcast"],
    },
    "routes.pipelined": {
        "before": [
            "_c10d_functional.all_gather_into_tensor", "aten.mm", "aten.mm", "_c10d_functional.reduce_scatter_tensor",
        ],
        "after": ["symm_mem.fused_all_gather_matmul", "symm_mem.fused_matmul_reduce_scatter"],
    },
    "autograd.captured": {"aot": 3, "compiled_autograd": 1, "before_backward": 0, "same": True},
    "breaks.splits": {
        "graphs": 2, "same": True, "hidden_ran_compiled": False, "hidden_runs": 3, "print_graphs": 2,
        "log_graphs": 2, "callback_graphs": 4, "silent_graphs": 1, "fullgraph": "Unsupported: disabled",
        "enabled_graphs": 1, "disabled_graphs": 2, "callback_of_a_number_graphs": 1,
        "reasons": {
            "print": ["builtin operator print"], "log": ["logging.Logger method"], "callback": ["Tensor.tolist()"],
            "disabled": ["Skip calling `torch.compiler.disable()`d function"],
        },
        "fullgraph_silent": "", "fullgraph_print": "Unsupported: builtin operator print",
        "falls_back_same": True, "falls_back_graphs": 4, "parts": [["add"], ["sin"]],
        "printed": {"same": True, "lines": 3, "parts": [["add"], ["sin"]]},
    },
    "breaks.regions": {
        "whole": {"2": ["linear", "relu", "add"] * 2, "8": ["linear", "relu", "add"] * 8}, "whole_graphs": 1,
        "parts": {
            name: {"graphs": 1, "operators": count, "same": True}
            for name, count in (("a method", 2), ("a layer", 3), ("the model", 9))
        },
    },
    "breaks.first_call": {
        "backend_s": 0.25, "compiled_before": 0, "compiled_after": 1, "first_s": 0.3, "later_s": 0.001,
    },
    "guards.recompiles": {
        "first_two": {"counts": [1, 1], "symbolic": False},
        "sizes": {
            "counts": [1, 2, 2, 2], "symbolic": True, "reasons": ["size mismatch: expected 4, actual 5"],
        },
        "dynamic": {"counts": [1, 1, 1, 1]},
        "numbers": {"counts": [1, 1, 2], "ints": [3, 2], "reasons": ["n == 3"], "same": True},
        "flags": {"counts": [1, 1, 2], "same": True}, "global": {"counts": [1, 1, 2], "same": True},
        "talks": {"counts": [2, 3], "same": True},
    },
    "guards.churn": {
        "sweep": {"sequence length": [1, 1, 2], "batch": [1, 1, 3], "int attribute": [1, 1, 8], "thread count": [1, 1]},
        "default": {"counts": [1, *[2] * 9], "gave_up": 0, "values": 10},
        **{
            name: {"counts": [*range(1, 9), 8, 8], "gave_up": 2, "values": 10}
            for name in ("looped", "other_rank")
        },
        "frozen": {"counts": [1] * 10, "gave_up": 0, "values": 10},
    },
    "cliff.forwards": {
        "blocks": 2, "A": [COUNTS_A, COUNTS_A], "B": [COUNTS_B, COUNTS_B], "C": [COUNTS_C, COUNTS_C], "CB": FASTER,
        "BA": SLOWER, "largest": {"B": 7, "C": 96}, "recompiling": SLOWER, "in_place": True,
        "chain": {"one graph": TENFOLD, "eager": SLOWER, "regions": 32, "breaks": 16, "steps": 16},
    },
    "cliff.mixed": {
        "blocks": 4, "functional": {"regions": 1, "breaks": 0, "at_collective": 0, "graphs": 1, "largest": 192},
        "once": {"regions": 15, "at_collective": 1, "largest": 37},
        "escaped": {"regions": 12, "breaks": 8, "at_collective": 4, "graphs": 3, "largest": 37},
        "printing": {"regions": 8, "breaks": 4, "at_collective": 0, "reasons": ["Failed to trace builtin print"]},
    },
    "cliff.recorded": {"blocks": 40, "torch": "2.13.0", "here": "2.13.0", "CA": FASTER, "CB": {**FASTER, "high": 0.45},
        "BA": SLOWER,
    },
    "cliff.forty": {
        "disabled": {"breaks": 320, "at_collective": 160, "collectives": 160, "graphs": 9},
        "functional": {"breaks": 0, "at_collective": 0, "collectives": 160, "graphs": 1},
    },
    "whole.compiled": {
        "graphs": 1, "same": True, "ends": ["FakeTensor"], "in_place_before": 6, "in_place_after": 0,
        "operations_after": 14, "pointwise": 11, "kernels": 3, "kernels_of_pieces": 5, "exact": 2,
        "seeds": 20, "reordered": 15, "compiled": 9,
        "whole_numbers": 0, "in_place_orders_wrong": 14, "functional_orders_wrong": 0, "backward_operations": 20,
        "backward_in_place": 0, "gradients_same": True,
    },
    "whole.split_norm": {"ranks": [NORM, NORM]},
    "trap.guardrail": {
        "in_place": {"operations": 1, "says": ""}, "gated": {"operations": 1, "says": ""},
        "functional": {"operations": 8, "says": "the eager path went functional: 1 a::b"},
        "copied_back": {"operations": 9, "says": "the eager path went functional: 1 a::b"},
        "compiled": ["_c10d_functional.all_reduce", "_c10d_functional.wait_tensor"],
        "compiled in place": ["_c10d_functional.all_reduce", "_c10d_functional.wait_tensor", "aten.copy_"],
    },
    "cost.eager_functional": {
        **SLOWER, "parts": {"copy": SLOWER, "wrapper": SLOWER}, "made": {"memory of its own": True, "a wrapper": True},
    },
    "cost.eager_dtensor": SLOWER,
    "cost.compiled_dtensor": {name: {"eager": SLOWER, "compiled": NONE_LEFT} for name in ("small", "products")},
    "rendezvous.rendezvous": {
        "port_from_environment_answers": True, "connected_to": ["127.0.0.2"], "world": [[0, 2], [1, 2]],
        "keys": {**FIRST, **NEW, "init/cnt": ""}, "listening": [*FIRST.values(), *NEW.values(), "0.0.0.0:1"],
        "named": True, "called": [FIRST["default_pg/0//cpu//0/0"], NEW["default_pg/0//1//cpu//0/1"]],
    },
    "rendezvous.meetings": {
        "outcomes": ["joined"] * 4, "last_came_s": 0.8, "server_key_s": 0.82, "unlisted": True, "first_joined_s": 0.83,
        "without_the_last": [f"default_pg/0//cpu//0/{i}" for i in (1, 2)],
        "keys": [f"default_pg/0//cpu//0/{i}" for i in range(4)],
        "missing": ["DistStoreError: Timed out after 3 seconds waiting. 3/4 clients joined.", "wait timeout"],
    },
    "rendezvous.arrivals": {
        **{
            str(n): {"0": f"Timed out. {n}/4 clients joined.", **dict.fromkeys(["1", "2"][: n - 1], "joined")} | BESIDE
            for n in (1, 2, 3)
        },
        "4": {"0": "joined", "3": "joined"} | BESIDE, "keys": [1, 0], "added": True, "took_turns": False,
        "barriers": [],
    },
    "barriers.at_work": {
        "finished_behind": {"store": False, "group": True}, "keys_of_barrier": 0, "keys_of_all_reduce": 0, "ranks": 4,
        "sent": {"barrier": 1155, "all_reduce": 90000, "store": 0}, "reduced": 16384, "count_at_return": 4,
        "to_store": {"barrier": 0, "all_reduce": 0, "store": 405}, "released_after_s": [0.001] * 4,
    },
    "barriers.backends": {
        "world": "gloo", "sums": {"gloo": 6.0, "shm": 6.0, "a": 6.0}, "refused": {},
        "made": [["ProcessGroupGloo"], ["ShmProcessGroup"], ["ProcessGroupGloo", "FakeProcessGroup"]],
    },
    "dtensor.placements": {
        "shard_local": [[256, 512]] * 4, "shard_mine": [True] * 4, "replicate_local": [[1024, 512]] * 4,
        "replicate_mine": [True] * 4, "passed_logical": [4096, 512], "passed_local": [1024, 512],
        "own_logical": [1024, 512], "own_bytes": [524288] * 4, "grid_logical": [4, 4], "grid_bytes": [16] * 4,
        "partial_local": [1.0, 2.0, 3.0, 4.0], "partial_whole": 10.0, "replicas": [0.0, 1.0, 2.0, 3.0],
        "shapes": [[2], [3], [4], [5]], "asked": [[0.0] * 4, ["ValueError"] * 4], "zeros": [[[2, 4], 32]] * 4,
        "skipped": SKIPPED, "zeros_replicated": [[[8, 4], 128]] * 4, "is_tensor_subclass": True,
        "methods": {"__new__": False, "__torch_dispatch__": True, "redistribute": True},
        "shard_logical": [1024, 512], "shard_whole": True, "bare": ["DTensor", [256, 512], True],
        "mixed_whole": [[1.0, 1.0], [1.0, 1.0], [5.0, 5.0], [5.0, 5.0]],
        "torch_zeros": "TypeError: device_mesh", "two_by_four_logical": [8192, 4096],
        "two_by_four_local": [4096, 1024],
    },
    "dtensor.dispatching": {
        "operations": 3, "dtensor": 3, "in_python": 3, "local": [[[8, 16], [16, 16]]], "product": ["DTensor", [8, 32]],
    },
    "redistribute.operations": {
        "view(-1,)": op("R", all_gather_into_tensor=1), "view(8, 2)": op("R", all_gather_into_tensor=1),
        "view(2, 2, 4)": op("S(2)"),
        "column": op("S(1)"), "sum": op("P(sum)"), "inner": op("P(sum)"), "partial_used": op("R", all_reduce=1),
        "partial_forced": op("R", all_reduce=1), "partial_added": op("P(sum)"),
        "mismatched": op("S(0)", all_gather_into_tensor=1),
        "moves": {
            "S(0) to R": {
                "forward": ["all_gather_into_tensor"], "backward": [], "right": True,
                "backward_partial": ["reduce_scatter_tensor"],
            },
            "P to R": {"forward": ["all_reduce"], "backward": [], "backward_partial": [], "right": True},
        },
        "trained with the batch split": {"right": True, "collectives": {"all_reduce": 6}, "gradients": ["DTensor"]},
        "trained with the weights split": {"right": True, "collectives": {"all_reduce": 3}, "gradients": ["DTensor"]},
        "grid": {
            "placement": ["S(0)", "P(sum)"], "collectives": {}, "right": True,
            "to_replicate": {"all_gather_into_tensor": 1, "all_reduce": 1},
            "groups": [[0, 1], [0, 2], [1, 3], [2, 3]],
        },
    },
    "redistribute.compiled": {
        name: {
            "written": int(name == "explicit"), "calls": ["aten.mm", *KEPT_CALLS], "dtensors_left": 0, "same": True,
            "takes": ["Node", "str"], "mutates": False,
        }
        for name in ("asked", "whole", "explicit")
    },
    "routes.predictable": {
        "written": 2, "explicit": {"collectives": 2, "bytes": 2048}, "told": {"collectives": 2, "bytes": 2048},
        "left_alone": {"collectives": 4, "bytes": 38912},
        "lowered": {"written": 0, "calls": ["aten.mm", *KEPT_CALLS] * 2, "dtensors_left": 0, "same": True},
        "times": {**SLOWER, "label": "host only"},
    },
    "routes.rulebook": {
        "core": 193, "with_rule": 193, "by_decomposition": 0, "without": [],
        "programs": {"x + x": "right", "x.nonzero()": "refused: RuntimeError"},
    },
    "routes.caching": {
        "first": [0, 1], "second": [1, 0], "third": [1, 0], "other_shape": [0, 1], "emptied": [0, 1],
        "times": {**FASTER, "label": "host only"},
    },
    "routes.dynamic": {
        "uneven": [UNEVEN, {"eager": EVEN_ROWS, "compiled": ODD_ROWS}], "written_out": [UNEVEN, UNEVEN],
        "nonzero": [{"DTensor": "RuntimeError: no", "local": ""}] * 2, "alone": [5, 5],
    },
    "groups.store": {
        "chain": ["PrefixStore", "TCPStore"], "sums": [2.0] * 3, "own": [["PrefixStore"] * 2] * 3,
        "new_keys": [["0//1//cpu//0/0", "0//1//labkit"], ["0//2//cpu//0/0", "0//2//labkit"]],
        "same_key": ["group 1", "group 2"],
        "prefixed": ["a", "b"], "under": ["0//one/barrier", "0//two/barrier"], "python_threads": 0, "connections": 3,
        "server_threads": 1, "client_threads": 0, "counts": [1, 2],
        "read_by_other": "secret", "kept": ["secret", "secret"], "no_server_s": 0.51,
        "cuda_initialized": False, "grown": 34 << 20, "stored": 32 << 20,
        "listens_at": ["0100007F"],
        "held_s": {"wait": 0.3001, "get": 0.3001, "connect": 0.35}, "missing_key": "DistStoreError: wait timeout",
        "missing_get": "DistStoreError: wait timeout",
        "target_value": "TypeError: wait()", "target_keyword": "TypeError: wait()",
        "no_server": "DistNetworkError: timed out",
    },
    "groups.mesh": {
        "tensor": [[0, 1, 2, 3], [4, 5, 6, 7]], "tensor_device": "cpu", "under_meta": "cpu", "is_tensor": True,
        "of_gpus": ["cuda", "cpu"],
        "coordinate": [1, 1],
        "made_by_new_group": [[0, 1, 2, 3], [0, 4], [1, 5], [2, 6], [3, 7], [4, 5, 6, 7]],
        "cached": True, "pseudo_code": [[0, 1, 2, 3], [4, 5, 6, 7]], "groups": GROUPS,
        "coordinates": [[r // 4, r % 4] for r in range(8)], "made_by_lookups": 0,
        "steps": {"last": [33] * 3, "named": [40] * 3},
        "axes": [1, 2, 3], "flat": [*range(8)], "distinct": True, "in_python": 0,
        "made_of": "torch._C._distributed_c10d.ProcessGroup",
        "bases": ["torch.distributed.ProcessGroup", "pybind11_builtins.pybind11_object", "builtins.object"],
    },
    "symmetry.drills": {
        "one_call_fewer": HUNG, "other_kind": HUNG, "swapped": {**DONE, "values": [[11, 11], [11, 11]]},
        "other_dtype": {**DONE, "values": [1, 1065353216]}, "data_branch": HUNG,
        "other_shape": {**DONE, "values": [[0, 7], [0, 3, 6]]}, "other_size": {"how": "failed"}, "meta_device": HUNG,
        "functional_order": HUNG, "rank_branch": HUNG,
        "other_operation": {**DONE, "values": [4, 4]},
        "nobody_odd": {**DONE, "values": [{n: RIGHT[n] for n in ODD}] * 2},
        "shape_branch": HUNG, "flag_branch": HUNG,
        "timeout": {"alike": "finished: [[8.0, 8.0, [1]], [8.0, 8.0, [1]]]", "odd": "RuntimeError Timed out waiting"},
        "flag_compared": {"how": "failed", "says": "ParityError, ParityError"},
        "shape_compared": {"how": "failed", "says": "PlanError, PlanError"},
        **{name: {**DONE, "values": [RIGHT[name]] * 2} for name in ("shape_alike", "flag_alike")},
        "own_break": {
            **DONE, "values": [own_break([[1, 0], [1, 0]], [[1, 0], [2, 1]])] * 2,
        },
        "alone": {**DONE, "values": [[[4, 10, [1, 2]], [4, 8, [1, 2]]]]},
        "own_graphs": {**DONE, "values": OWN_GRAPHS},
    },
    "symmetry.recompiling": {
        "alone": {**DONE, "values": [{"value": 5, "graphs": 1}, {"value": 5, "graphs": 2}]},
        "guarded": {**DONE, "values": [{"value": 5, "graphs": 2}, {"value": 5, "graphs": 2}]},
    },
    "bucketing.breaking": {
        "alike": GATHERED, "default": GATHERED, "bucketed": PARTED, "logged": PARTED, "recompile": HUNG,
        "recompile of both": {**DONE, "values": [RIGHT["shape_alike"]] * 2}, "conditional": HUNG,
        "conditional on none": {**DONE, "values": [8, 8]},
    },
    "released.files": {
        "CUDAStream": ["ncclStreams_"], "CUDAEvent": ["ncclEvents_"], "NCCLComm": ["devNCCLCommMap_"],
        "thread": ["ncclCommWatchdogThread_"], "methods": ["broadcastUniqueNCCLID", "destroyNCCLComms"],
        "included": ["mpi.h"], "said": [*SENTENCES],
    },
    "membership.mesh_and_world": {
        "outside": {
            **DONE, "values": driven(["outside", "alike", "alike"], "refused"),
        },
        "refused": {
            **DONE, "values": ["rank 0 is outside of 'mesh' and so on; " * 2, *["is in it; is in it"] * 2],
        },
        "served": {
            **DONE, "values": [
                {"answers": [108.1], "graphs": graphs, "calls": n}
                for graphs, n in ((STAGE, 0), (LAYERS, 4), (LAYERS, 4))
            ],
        },
        "unlike": {**DONE, "values": ["outside", "refused", "refused"]},
        "stranger": {"all_reduce": DONE, "send": {"how": "failed"}}, "world_inside": HUNG,
        "member_by_mistake": HUNG, "right_members": {**DONE, "values": [2, 2, 2]},
    },
    "growth.growth": {
        "whole": {"per_block_s": 0.05, "per_block_low": 0.04, "per_block_high": 0.06},
        "blocks": {"per_block_s": 0.002, "per_block_low": 0.001, "per_block_high": 0.003}, "a_block_takes": "less",
        "deepest": FASTER, "traced": {"whole": 12, "blocks": 1},
    },
    "training.parallel": {
        "ddp": {
            "right": True, "graphs": 1, "collectives_in_backward": 0, "right_inside": True,
            "eager": {"forward": 0, "backward": 3, "behind": 1, "callers": []},
            "returned": {"forward": 0, "backward": 0, "behind": 0, "callers": []},
            "a_layer_less": {"forward": 0, "backward": 3, "behind": 0, "callers": []},
        },
        "fsdp": {
            "compiled_right": True, "graphs": 2,
            "eager": {"forward": 0, "backward": 4, "behind": 0, "callers": ["gather in a hook"]},
        },
        "pieces": {"alone": [1, 0], "DDP": [3, 0], "DDP, not cut": [1, 0], "FSDP2": [2, 1],
                   "FSDP2 without its hooks": [1, 0]},
    },
    "sharding.sharded": {
        "fsdp": {"parameters": ["DTensor"], "placements": ["S(0)"], "right": True},
        "gathered": {"right": True, "gathers": 8, "scatters": 8, "graphs": [1, 1]},
        "compiled autograd": {"right": True, "reduces": [8]},
        "functional": {"sum": "", "avg": "RuntimeError: only sum"},
        "by hooks": {"DDP": [True, 4, 0], "FSDP2": [True, 4, 0]},
    },
    "sharding.limits": {
        "whole": {"a plain module": "", "DDP": "Unsupported: hooks", "FSDP2": "Unsupported: hooks"},
        "second backward": {"eager": "", "compiled": "RuntimeError: no double backward"},
        "eager": {"a plain module": "", "DDP": "", "FSDP2": ""},
    },
    "backend.inductor": {
        "code_calls": ["torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '0')"], "buffers_before": 1,
        "right": True, "ignored_wait_right": {"eager": True, "compiled": True, "without": False},
    },
    "backend.scheduling": {
        "ways": {"default": ["all_gather wait mm", 0, True], "sink_waits": ["all_gather mm wait", 1, True]},
        "inserted": {
            "default": ["all_gather wait mm all_gather wait mm all_gather wait mm", 0],
            "overlap scheduling": ["all_gather all_gather wait mm", 3],
        },
        "inserted_right": True,
    },
    "backend.rounding": {
        "elements_that_differ": 11, "elements": 32, "largest_difference": 0.25, "close": True,
        "pointwise": {"eager": 9, "rounded once": 0},
        "eager_again_differ": 0,
        "stages_differ": {
            "eager": {"chain": 0, "replaced": 0, "traced": 9}, "aot_eager": {"chain": 0, "replaced": 0, "traced": 9},
            "aot_eager_decomp_partition": {"chain": 0, "replaced": 7, "traced": 9},
            "inductor": {"chain": 11, "replaced": 7, "traced": 9},
        },
    },
    "stream_inside.inside": {
        "prefix": ["LOAD_ATTR store_user_object_weakrefs", "LOAD_FAST one", "LOAD_FAST two"],
        "table": ["stream 0, the ambient one", "stream 1", "stream 2"],
        "backward": summed(), "other backward": summed("s1", "s1", "s2"), "error": "",
        "returned": {"backward": ["mul_2"], "other backward": ["tanh"]},
        "x": {"at records": [1.0], "after": 2.0},
    },
    "stream_programs.clocks": {"races": {"without an event": 1, "with an event": 0}},
    "stream_code.code": {
        "shipped": "captured", "of": "2.13.0", "here": "2.13.1+cpu", "written": True,
        "kernels": {
            "plain": [triton("no stream", "cos sin tanh")],
            "streamed": [
                triton("default_stream", "sin"), ["default_stream", "record_event", ""],
                ["stream1", "wait_event", ""], triton("stream1", "cos"), triton("stream2", "tanh"),
                ["default_stream", "triton_poi_fused_add_3", ""],
            ],
            "one_stream": [triton("stream1", "cos sin")], "reduced": [triton("stream1", "sin sum")],
            "apart": [triton("stream1", "sin"), triton("stream2", "cos")],
            "reduced_apart": [triton("stream1", "sin"), triton("stream2", "sum")],
            "event_between": [triton("stream1", "sin"), triton("stream1", "cos"), triton("stream2", "tanh")],
            "wait_between": [triton("stream2", "tanh"), triton("stream1", "sin"), triton("stream1", "cos")],
            "softmaxed": [triton("stream1", "sum")],
        },
    },
    "stream_offload.passes": {
        "layers": 2,
        "one": {"error": "", "log": [*ASIDE, "user's wait_event event"], "left": 0, "right": True},
        "without": {"forward": [], "backward": [], "kept": [["relu", 64], ["relu_1", 64]], "carried": 0},
        "with": {
            "forward": [
                ["mm", "kernel", ["x"], True], ["relu", "kernel", ["mm"], False], ["off", "offload", ["relu"], False],
                ["mm_1", "kernel", ["relu"], True], ["relu_1", "kernel", ["mm_1"], False],
                ["off_1", "offload", ["relu_1"], False],
            ],
            "backward": RELOADS,
            "kept": [["off", 0], ["off_1", 0]], "carried": 256,
        },
        "over a fast link": {"backward": RELOADS},
    },
    "stream_programs.order": {
        "calls": ["all_reduce", "wait_tensor", "work", "mm"],
        "starts_s": {"compiled": [0.2, 0.21], "eager": [0.0, 0.01]},
    },
    "stream_graphs.graphs": {
        "torch": "2.13.0", "claimed": "2.12",
        "dynamo": [node("get_user_obj_by_index"), node("set_current_stream"), node("by_index"), node("sin", 1)],
        "forward": [node("sin", 1), node("mul", 1), node("cos", 2), node("mul", 2), node("add")],
        "backward": [
            node("neg", 2), node("mul", 2), sync("record_event", 3, 1), node("cos", 1), node("mul", 1),
            sync("wait_event", 3, 2), node("add", 2, come=(2, 1)), sync("record_event", 5, 2),
            sync("sync_dealloc", 5, 1, held=False),
        ],
        "ran": {"streams::record_event": 2, "streams::wait_event": 2, "streams::sync_dealloc": 1},
        "schemas": {
            name: schema(name, "SymInt", "SymInt") for name in ("record_event", "wait_event", "wait_stream")
        },
        "graphs_after_other_streams": 1, "streams_looked_up": [[1, 2], [3, 4]], "meta_keys": [], "stream_constants": 0,
        "without_stream_idx": 0,
        "event": {
            "error": "", "same": True,
            "nodes": [sync("record_event", 1, 0), node("mul", 1, "getitem", "getitem")],
        },
        "mutates_and_records": {"error": "RuntimeError: An event was recorded too early", "nodes": [], "made": 0},
        "records_aside": {"error": "RuntimeError: An event was recorded too early", "nodes": []},
        "mutates": {"error": "", "same": True, "nodes": [node("mul"), node("add", 1), node("copy_")]},
        "frees": {
            "error": "", "same": True, "returned": ["cos", "add"],
            "nodes": [node("sin"), node("cos", 1, "sin"), node(KEPT_SYNC, None, "sin"), node("add")],
        },
        "crosses": {
            "error": "", "same": True, "nodes": [node("sin"), sync("record_event", 4, 1), sync("wait_event", 4, 0)],
        },
        "waits": {"error": "", "same": True, "nodes": [sync("wait_stream", 1, 0)]},
        "nested": {"error": "", "same": True, "nodes": [node("sin", 1), node("cos", 2), node("tan", 1), node("exp")]},
    },
    "streams.mutation": {"graphs": 1, "inputs": ["x"], "steps": MUTATED, "input_after": 2.0, "right": True},
    "logs.logs": {
        "program": {
            "graph_breaks": BROKE[:2], "recompiles": ["[0/1] [__recompiles] - 0/0: expected 4, actual 5"],
            "guards": GUARDED, "graph_code": SHOWN,
        },
        "twice": {"graph_breaks": BROKE},
        "whole": {"graph_breaks": [], "recompiles": [], "graph_code": ["[3/0] [__graph_code] x.sin().cos()"]},
        "calls_s": [0.9, 0.001, 0.4, 0.001], "compared": SLOWER,
    },
}  # fmt: skip

NONE_FUNCTIONAL = {name: {"one_graph": False} for name in CLASSIC} | {"all_gather": {"in_place": 1}}
NONE_FUNCTIONAL |= {"reduce_scatter_tensor": {"waited": False}}
CASES: dict[str, list[Record]] = {
    "collectives.inplace_mutates": [
        {}, {"inplace_value": 1.0}, {"inplace_same_memory": False}, {"gather": {"values": [0.0, 0.0]}},
        {"gather": {"same_memory": False}},
    ],
    "collectives.inplace_returns_work": [
        {}, {"async_returns": "Tensor"}, {"async_is_tensor": True}, {"group_returns": "NoneType"},
        {"gather": {"async_returns": "NoneType"}}, {"inplace_returns": "Tensor"}, {"inplace_value": 1.0},
    ],
    "collectives.functional_returns_new": [
        {}, *({"family": {"broadcast": {key: False}}} for key in ("new", "right", "is_tensor", "input_left")),
        {"family": None},
    ],
    "collectives.functional_wraps": [
        {}, {"family": {"all_gather": {"type": "Tensor"}}}, {"family": {"all_gather": {"is_tensor": False}}},
    ],
    "collectives.a_value_that_is_still_to_come": [
        {}, {"early": ["Tensor", True, 1.0]}, {"early": ["AsyncCollectiveTensor", True, 3.0]},
        {"early": ["AsyncCollectiveTensor", False, 1.0]}, {"early_then": 1.0},
    ],
    "collectives.not_ready_before_wait": [
        {}, {"before_wait": 3.0}, {"after_wait_ignored": 1.0}, {"raw_is_tensor": False},
    ],
    "collectives.wait_returns_new": [
        {"wait_same_memory": False, "wait_same_object": False}, {"wait_same_memory": True}, {"wait_same_object": True},
    ],
    "collectives.waiting_leaves_the_original": [{"after_wait_ignored": 1.0}, {"after_wait_ignored": 3.0}],
    "collectives.gate_is_inplace_in_eager": [{}, {"gate_same_object": False}, {"gate_value": 1.0}],
    "tracing.inplace_breaks_tracing": [
        NONE_FUNCTIONAL, {"all_gather_into_tensor": {"one_graph": True}}, {"functional": {"one_graph": False}},
        {"all_gather": {"in_place": 0}}, {"reduce_scatter_tensor": {"waited": True}},
    ],
    "tracing.work_handles_break": [
        {}, {"all_reduce_async": {"one_graph": True, "why": ""}},
        {"all_reduce_async": {"why": "BackendCompilerFailed: no"}},
        {"all_reduce": {"one_graph": False}}, {"all_reduce": {"in_place": 1}}, {"all_reduce": {"calls": ["aten.add"]}},
        {"all_reduce": {"waited": False}},
    ],
    "tracing.groups_do_not_pass": [
        {"group": "", "by_group": [1, 1, 1], "sums": [3.0, 3.0, 3.0]}, {"sums": [3.0, 3.0, 2.0]},
        {"plain": "BackendCompilerFailed: no"},
    ],
    "tracing.handles_do_not_pass": [{}, {"work": ""}, {"plain": "BackendCompilerFailed: no"}],
    "tracing.functional_is_traced": [
        {}, {"functional": {"one_graph": False}}, {"functional": {"same": False}},
        {"functional_gather": {"graphs": 2}}, {"functional": {"calls": ["aten.add"]}},
        {"functional_broadcast": {"calls": KEPT_CALLS[:1]}}, {"functional_exchange": {"in_place": 1}},
        {"functional": {"waited": False}},
    ],
    "tracing.only_tensors_and_waits_fit": [
        {}, {"all_reduce_async": {"one_graph": True}}, {"all_gather": {"calls": ["c10d.allgather_"]}},
        {"all_reduce_async": {"why": "BackendCompilerFailed: no"}}, {"broadcast": {}, "functional": {"waited": False}},
        {"functional_scatter": {"one_graph": False}}, {"functional": {"calls": KEPT_CALLS[:1]}},
    ],
    "tracing.disabled_collectives_run_in_eager": [
        {}, {"disabled": {"ran_compiled": [False, True]}}, {"disabled": {"ran_compiled": [False]}},
        {"disabled": {"graphs": 1}}, {"disabled": {"same": False}}, {"disabled": {"calls": KEPT_CALLS}},
    ],
    "tracing.classic_becomes_functional": [
        {}, {"all_gather": {"calls": ["c10d.allgather_"]}}, {"all_gather": {"calls": [*KEPT_CALLS, "c10d.allgather_"]}},
        {"all_reduce": {"same": False}}, {"all_reduce": {"waited": False}},
    ],
    "tracing.collectives_compile": [
        {}, {"all_reduce": {"same": False}}, {"functional": {"calls": []}},
        {"functional": {"calls": ["aten.add.Tensor"]}},
    ],
    "tracing.groups_leak_into_the_graph": [
        {"all_reduce": {"argument_types": ["Node", "ProcessGroup"]}},
        {"all_reduce": {"argument_types": ["Node", "str"]}},
    ],
    "gates.compiled_code_needs_the_functional_form": [
        {}, {"rows": {"broadcast": {"same code": "yes", "gate": "no"}}},
    ],
    "gates.all_reduce_needs_a_gate": [{}, {"rows": {"all_reduce sum": {"same code": "yes", "gate": "no"}}}],
    "tracing.plain_arguments": [
        {}, {"functional": {"argument_types": ["Node", "ProcessGroup"]}},
        {name: {"argument_types": None} for name in FUNCTIONAL},
    ],
    "functional.traced_and_compiled_without_a_group": [
        {}, {"initialized": True}, {"shapes": {"all_gather_into_tensor": [8]}},
        {"shapes": None, "errors": {"all_reduce": "ValueError: no group"}},
        *({"compiled": {by: "RuntimeError: no process group"}} for by in ("aot_eager", "inductor")),
        {"compiled": {"inductor": "InvalidCxxCompiler: no"}},
    ],
    "functional.no_stream_in_a_schema": [
        {}, {"broadcast": {"arguments": ["Tensor", "Stream"]}}, {"broadcast": {"returns": ["Event"]}},
        {"broadcast": {"names": ["input", "stream_index"]}},
    ],
    "functional.many_frontends": [
        {}, {"sums": {"a": [1.0, 1.0]}}, {"errors": {"name": "ValueError: no"}},
        {"of_dtensor": {"c10d_functional.all_reduce": None, "c10d.allreduce_": 1}},
    ],
    "functional.registered_with_the_dispatcher": [
        {}, {"broadcast": {"kernel": False}}, {"broadcast": {"mutates": True}}, {"broadcast": {"returns": []}},
    ],
    "functional.the_source_is_one_file": [{}, {"file": "collectives.py"}, {"defined": ["all_reduce"]}],
    "routes.async_tp_rewrites_naive_collectives": [
        {}, {"after": ["_c10d_functional.all_gather_into_tensor", "aten.mm", "symm_mem.fused_matmul_reduce_scatter"]},
        {"before": ["aten.mm"]}, {"after": ["aten.mm", "aten.mm"]},
    ],
    "autograd.functional_has_gradients": [
        {}, *({name: [2.0] * 4} for name in ("compiled", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")),
    ],
    "autograd.functional_has_none": [
        {name: [2.0] * 4 for name in (*GRADIENTS, "compiled")}, *({name: GRADIENTS[name]} for name in SUPPORTED),
        {"compiled": GRADIENTS["all_reduce"]},
    ],
    "autograd.support_has_limits": [
        {},
        {"broadcast": GRADIENTS["broadcast"], **dict.fromkeys(("max", "min", "product"), "forward: RuntimeError")},
    ],
    "autograd.whole_backward_is_captured": [
        {}, {"compiled_autograd": 3}, {"aot": 1}, {"same": False}, {"before_backward": 1},
    ],
    "breaks.a_break_makes_two_graphs": [
        {}, {"parts": [["add", "sin"]]}, {"parts": [["sin"], ["sin"]]}, {"same": False}, {"enabled_graphs": 2},
        {"silent_graphs": 2}, {"printed": {"parts": [["sin"]]}},
    ],
    "breaks.python_runs_in_between": [
        {}, {"hidden_runs": 1}, {"hidden_ran_compiled": True}, {"graphs": 0}, {"same": False},
        {"printed": {"lines": 1}}, {"printed": {"parts": [["sin"]]}}, {"printed": {"same": False}},
    ],
    "breaks.breaks_and_recompiles_are_no_failure": [
        {}, {"print_graphs": 1}, {"falls_back_graphs": 2}, {"falls_back_same": False},
    ],
    "breaks.disable_falls_back_to_eager": [
        {}, {"same": False}, {"hidden_ran_compiled": True}, {"hidden_runs": 0}, {"enabled_graphs": 2},
        {"parts": [["add"], ["mul"], ["sin"]]}, {"parts": []},
    ],
    "breaks.fullgraph_bans_breaks": [
        {}, {"fullgraph": ""}, {"fullgraph": "RuntimeError: the backend failed"},
        {"fullgraph_silent": "RuntimeError: no"}, {"graphs": 1}, {"print_graphs": 1}, {"fullgraph_print": ""},
        {"fullgraph_print": "RuntimeError: the backend failed"},
    ],
    "breaks.side_effects_break": [
        {}, *({f"{name}_graphs": 1} for name in ("print", "log", "callback", "disabled")), {"silent_graphs": 2},
        {"enabled_graphs": 2}, *({"reasons": {name: ["another cause"]}} for name in ("print", "callback", "disabled")),
    ],
    "breaks.logging_breaks": [
        {}, {"log_graphs": 1}, {"silent_graphs": 2}, {"reasons": {"log": ["Unsupported: getLogger"]}},
    ],
    "breaks.loops_are_unrolled_and_calls_inlined": [
        {}, {"whole": {"8": ["linear", "relu", "add"] * 2}}, {"whole_graphs": 9},
        {"whole": {"2": ["invoke_subgraph"] * 2, "8": ["invoke_subgraph"] * 8}},
    ],
    "breaks.a_part_can_be_compiled": [
        {}, {"parts": {"a layer": {"graphs": 0}}}, {"parts": {"a layer": {"same": False}}},
    ],
    "breaks.any_region_can_be_compiled": [
        {}, {"parts": {"a method": {"graphs": 0}}}, {"parts": {"the model": {"graphs": 3}}},
        {"parts": {"a method": {"same": False}}}, {"parts": {"the model": {"operators": 3}}},
    ],
    "breaks.the_first_call_blocks": [
        {}, {"first_s": 0.01}, {"later_s": 0.3}, {"compiled_before": 1}, {"compiled_after": 2},
    ],
    "guards.static_by_default": [
        {}, {"first_two": {"symbolic": True}}, {"first_two": {"counts": [1, 2]}}, {"sizes": {"counts": [1, 1, 1, 1]}},
    ],
    "guards.turns_dynamic_on_variation": [
        {}, {"sizes": {"counts": [1, 2, 3, 4]}}, {"sizes": {"symbolic": False}},
    ],
    "guards.fixes_shapes_and_values": [
        {}, {"first_two": {"symbolic": True}}, {"numbers": {"ints": [2]}}, {"numbers": {"counts": [1, 1, 1]}},
    ],
    "guards.specializes_and_guards": [
        {}, {"first_two": {"symbolic": True}}, {"numbers": {"ints": [2]}}, {"sizes": {"reasons": []}},
        {"numbers": {"reasons": []}},
    ],
    "guards.a_failed_guard_recompiles": [
        {}, {"sizes": {"reasons": []}}, {"sizes": {"reasons": ["something else"]}},
        {"numbers": {"reasons": ["something else"]}}, {"numbers": {"reasons": []}}, {"numbers": {"counts": [1, 1, 1]}},
        {"sizes": {"counts": [1, 1, 2, 2]}},
    ],
    "guards.runtime_values_are_normal": [
        {}, {"numbers": {"counts": [1, 1, 1]}}, {"talks": {"counts": [1, 2]}}, {"talks": {"counts": [2, 2]}},
        {"global": {"same": False}}, {"talks": {"same": False}}, {"numbers": {"reasons": []}},
    ],
    "guards.other_values_recompile": [
        {}, {"global": {"counts": [1, 1, 1]}}, {"flags": {"counts": [1, 1, 1]}}, {"global": {"counts": [1, 2, 3]}},
    ],
    "guards.static_unless_asked": [
        {"sizes": {"counts": [1, 2, 3, 4], "symbolic": False}}, {"sizes": {"counts": [1, 2, 2, 2]}},
        {"sizes": {"symbolic": True}}, {"dynamic": {"counts": [1, 2, 3, 4]}}, {"sizes": {"counts": [1, 1, 1, 1]}},
    ],
    "guards.a_sweep_names_the_dimension": [
        {}, {"sweep": {"batch": [1, 1, 2], "int attribute": [1, 1, 2], "thread count": [1, 1, 2]}},
        {"sweep": {"sequence length": [1, 1, 1]}}, {"sweep": {"sequence length": [1, 2, 3]}},
    ],
    "guards.dynamic_may_fail": [
        {}, {"looped": {"counts": [1, *[2] * 9], "gave_up": 0}}, {"default": {"counts": [*range(1, 9), 8, 8]}},
    ],
    "guards.some_must_be_frozen": [
        {}, {"looped": {"gave_up": 0}, "other_rank": {"gave_up": 0}}, {"default": {"gave_up": 2}},
        {"other_rank": {"gave_up": 0}}, {"frozen": {"counts": [1, 2]}},
    ],
    "cliff.what_remains_has_another_cause": [
        {}, {"functional": {"breaks": 1}}, {"printing": {"breaks": 0}}, {"printing": {"at_collective": 1}},
        {"printing": {"reasons": ["Skip calling a disabled function"]}}, {"printing": {"reasons": None}},
        {"escaped": {"at_collective": 0}},
    ],
    "cliff.one_escape_fragments": [
        {}, {"escaped": {"at_collective": 0}}, {"escaped": {"regions": 5}}, {"escaped": {"largest": 190}},
        {"functional": {"regions": 9}}, {"functional": {"breaks": 4}}, {"once": {"at_collective": 0}},
        {"once": {"regions": 3}}, {"once": {"largest": 139}},
    ],
    "cliff.breaks_dominate": [
        {}, {"CB": SLOWER}, {"BA": FASTER}, {"chain": {"one graph": SLOWER}}, {"chain": {"one graph": FASTER}},
        {"chain": {"one graph": ALIKE}}, {"chain": {"eager": FASTER}}, {"chain": {"breaks": 0, "regions": 1}},
        {"B": [{**COUNTS_B, "regions": 1}] * 2},
    ],
    "cliff.breaks_cost_more_than_compiling_saves": [
        {}, {"CB": SLOWER}, {"CB": TELLS_NOTHING}, {"BA": FASTER}, {"BA": TELLS_NOTHING}, {"largest": {"B": 90}},
        {"B": [{**COUNTS_B, "regions": 1}] * 2},
    ],
    "cliff.breaks_and_recompiles_make_cliffs": [
        {}, {"CB": SLOWER}, {"CB": TELLS_NOTHING}, {"recompiling": FASTER}, {"recompiling": ALIKE},
        {"chain": {"one graph": ALIKE}}, {"chain": {"breaks": 0}},
    ],
    "cliff.baseline_is_eager": [
        {}, *({"A": [COUNTS_A, {**COUNTS_A, key: 1}]} for key in ("regions", "graphs", "collectives")),
        {"in_place": False},
    ],
    "whole.tensors_to_tensors": [{}, {"graphs": 2}, {"same": False}, {"ends": ["Tensor", "int"]}, {"kernels": 4}],
    "whole.nothing_in_place": [
        {}, {"in_place_after": 1}, {"in_place_before": 0}, {"same": False}, {"functional_orders_wrong": 1},
        {"in_place_orders_wrong": 0}, {"kernels": 11}, {"backward_in_place": 1}, {"gradients_same": False},
        {"backward_operations": 0},
    ],
    "whole.fused": [{}, {"kernels": 11}, {"kernels": 0}, {"kernels": 4}, {"kernels_of_pieces": 3}],
    "whole.sums_in_another_order": [{}, {"reordered": 0}, {"compiled": 0}, {"whole_numbers": 1}, {"exact": 20}],
    "whole.norm_reduces": [
        {},
        *(
            {"ranks": [NORM, {**NORM, "errors": {**NORM["errors"], key: wrong}}]}
            for key, wrong in (("reduced", 0.1), ("compiled", 0.1), ("alone", 1e-7))
        ),
        *({"ranks": [NORM, {**NORM, key: 2}]} for key in ("graphs", "reductions")),
    ],
    "cliff.breaks_per_forward": [
        {}, {"disabled": {"at_collective": 159}}, {"disabled": {"breaks": 0, "at_collective": 0, "collectives": 0}},
        {"functional": {"breaks": 1}}, {"functional": {"graphs": 3}}, {"functional": {"collectives": 0}},
    ],
    "cliff.breaks_come_before_kernels": [
        {}, {"CB": {**FASTER, "low": 0.7, "high": 0.9}}, {"CB": {**FASTER, "high": 0.8}},
        {"torch": "2.12.1"}, {"blocks": 2},
    ],
    "cliff.disabled_is_many_regions": [
        {}, {"B": [COUNTS_B, {**COUNTS_B, "regions": 1}]}, {"B": [COUNTS_B, {**COUNTS_B, "breaks": 0}]},
        {"largest": {"B": 90}}, {"C": [COUNTS_B] * 2},
    ],
    "cliff.functional_takes_the_breaks_away": [
        {}, {"B": [COUNTS_B, {**COUNTS_B, "at_collective": 0}]}, {"largest": {"C": 9}},
        *(
            {"C": [COUNTS_C, {**COUNTS_C, k: v}]}
            for k, v in (("graphs", 2), ("breaks", 1), ("regions", 3), ("collectives", 0))
        ),
    ],
    "cliff.functional_is_faster_than_disabled": [{}, {"CB": SLOWER}, {"CB": TELLS_NOTHING}],
    "cliff.an_increase_is_slower": [
        {}, {"CB": SLOWER}, {"CB": TELLS_NOTHING}, {"C": [COUNTS_B] * 2}, {"B": [{**COUNTS_B, "graphs": 1}] * 2},
        {"chain": {"one graph": ALIKE}}, {"chain": {"regions": 1}}, {"recompiling": ALIKE},
    ],
    "cliff.disabled_is_slower_than_eager": [{}, {"BA": FASTER}, {"BA": TELLS_NOTHING}],
    "cliff.recorded_functional_brings_it_back": [
        {}, {"CA": SLOWER}, {"BA": FASTER}, {"BA": ALIKE}, {"CA": TELLS_NOTHING}, {"torch": "2.12.1"}, {"blocks": 2},
    ],
    "trap.a_count_guards_the_gate": [
        {}, {"gated": {"says": "the eager path went functional: 1 a::b"}},
        {"in_place": {"says": "this guards nothing"}},
        {"functional": {"says": ""}}, {"copied_back": {"says": ""}}, {"functional": {"says": "0 collectives ran"}},
    ],
    "trap.the_gate_goes_by_mode": [
        {}, {"gated": {"says": "the eager path went functional"}},
        {"compiled": ["_c10d_functional.all_reduce", "aten.copy_"]}, {"compiled": ["aten.mul"]},
        {"compiled in place": ["_c10d_functional.all_reduce"]},
    ],
    "cost.functional_is_slower_in_eager": [{}, FASTER, TELLS_NOTHING],
    "cost.allocation_and_wrapping_cost": [
        {}, FASTER, TELLS_NOTHING, {"parts": {"copy": FASTER}}, {"parts": {"wrapper": FASTER}},
        {"parts": {"wrapper": ALIKE}}, {"parts": {"copy": TELLS_NOTHING}},
        {"made": {"memory of its own": False}}, {"made": {"a wrapper": False}},
    ],
    "cost.dtensor_has_overhead_in_eager": [{}, FASTER, TELLS_NOTHING],
    **{
        name: [
            {}, {part: {"compiled": SLOWER}}, {part: {"compiled": TELLS_NOTHING}}, {part: {"compiled": {"high": 1.5}}},
            {part: {"eager": FASTER}}, {part: {"compiled": ALIKE}},
        ]
        for name, part in (
            ("cost.compiling_leaves_no_overhead", "small"), ("cost.compiling_can_leave_no_overhead", "products"),
        )
    },
    "rendezvous.rank_zero_serves": [{}, {"port_from_environment_answers": False}, {"keys": None}],
    "rendezvous.environment_is_read": [
        {}, {"world": [[0, 1], [0, 1]]}, {"port_from_environment_answers": False}, {"connected_to": ["127.0.0.1"]},
        {"connected_to": []},
    ],
    "rendezvous.completes_when_all_are_there": [
        {}, {"missing": ["wait timeout"] * 3}, {"missing": ["Timed out. 3/4 clients joined.", "", "wait timeout"]},
        {"first_joined_s": 0.3}, {"outcomes": ["joined"] * 3 + ["error"]},
    ],
    "rendezvous.ranks_write_addresses": [
        {}, {"keys": None}, {"keys": {"default_pg/0//cpu//0/1": None}}, {"keys": {"default_pg/0//cpu//0/1": ""}},
        {"keys": {"default_pg/0//cpu//0/1": FIRST["default_pg/0//cpu//0/0"]}}, {"listening": ["0.0.0.0:1"]},
        {"named": False}, {"connected_to": ["127.0.0.1"]},
    ],
    "rendezvous.addresses_go_through_the_store": [
        {}, {"keys": dict.fromkeys(NEW)}, {"keys": dict.fromkeys(FIRST)}, {"listening": [*FIRST.values()]},
        {"called": [FIRST["default_pg/0//cpu//0/0"]]},
        {"keys": {"default_pg/0//1//cpu//0/1": FIRST["default_pg/0//cpu//0/1"]}},
    ],
    "rendezvous.a_counter_is_in_the_store": [
        {}, {"missing": ["wait timeout"]}, {"unlisted": False}, {"first_joined_s": 0.3},
        {"outcomes": ["joined"] * 3 + ["error"]},
        {"missing": ["DistStoreError: Timed out after 3 seconds waiting. 3/4 clients joined.", ""]},
    ],
    "rendezvous.every_rank_counts": [
        {}, {"2": {"0": "Timed out. 1/4 clients joined."}}, {"3": {"0": "joined"}},
        {"4": {"0": "Timed out. 3/4 clients joined."}}, {"keys": [0, 0]}, {"keys": [1, 1]},
        {"added": False}, {"took_turns": True}, {"1": {"beside": "DistNetworkError"}},
    ],
    "rendezvous.every_rank_waits": [
        {"barriers": ["store_based_barrier_key:default_pg"]}, {"barriers": []},
    ],
    "rendezvous.backend_comes_second": [
        {}, {"server_key_s": 0.1}, {"outcomes": ["joined"] * 3 + ["error"]}, {"keys": ["default_pg/0//cpu//0/0"]},
        {"without_the_last": ["default_pg/0//cpu//0/0"]},
    ],
    "rendezvous.every_backend_waits_for_all": [
        {"without_the_last": []}, {"without_the_last": ["default_pg/0//cpu//0/1"]},
    ],
    "barriers.two_mechanisms": [
        {}, {"finished_behind": {"store": True}}, {"finished_behind": {"group": False}}, {"sent": {"barrier": 0}},
        {"sent": {"store": 9}}, {"to_store": {"barrier": 9}}, {"to_store": {"store": 0}},
    ],
    "barriers.barrier_leaves_the_store_alone": [
        {}, {"keys_of_barrier": 2}, {"sent": {"barrier": 0}}, {"to_store": {"barrier": 405}},
    ],
    "barriers.a_store_releases_all_at_once": [
        {}, {"count_at_return": 1}, *({"released_after_s": [0.001, late]} for late in (-0.2, 0.9)),
    ],
    "barriers.gloo_uses_tcp_and_shared_memory": [
        {}, {"sent": {"all_reduce": 105267}}, {"sent": {"all_reduce": 0}},
    ],
    "barriers.several_at_once": [
        {}, {"sums": {"shm": 3.0}}, {"refused": {"shm": "RuntimeError"}}, {"made": [["ProcessGroupGloo"]] * 3},
        {"made": [["ProcessGroupGloo"], ["ShmProcessGroup"], ["FakeProcessGroup"]]},
    ],
    "groups.groups_come_from_new_group": [{}, {"made_by_new_group": []}, {"made_by_new_group": [[0, 1, 2, 3]]}],
    "dtensor.shard_splits": [
        {}, {"shard_local": [[1024, 128]] * 4}, {"shard_local": [*[[256, 512]] * 3, [1024, 512]]},
        {"shard_mine": [True, False, False, True]},
    ],
    "dtensor.replicate_copies": [
        {}, {"replicate_local": [*[[1024, 512]] * 3, [256, 512]]}, {"replicate_mine": [True] * 3 + [False]},
    ],
    "dtensor.partial_holds_a_summand": [
        {}, {"partial_whole": 1.0}, {"partial_local": [10.0] * 4}, {"partial_local": [10.0, 0.0, 0.0, 0.0]},
    ],
    "dtensor.from_local_distributes": [
        {"passed_local": [256, 512], "passed_logical": [1024, 512]}, {"passed_local": [1024, 512]},
        {"passed_logical": [4096, 512]},
    ],
    "dtensor.local_first": [{}, {"own_logical": [256, 512]}, {"own_bytes": [524288, 524288, 524288, 2097152]}],
    "dtensor.two_axes_shard_two_dims": [{}, {"grid_logical": [4, 2]}, {"grid_bytes": [16, 16, 16, 64]}],
    "dtensor.two_by_four": [{}, {"two_by_four_logical": [8192, 1024]}, {"two_by_four_local": [8192, 4096]}],
    "dtensor.torch_zeros_takes_a_mesh": [{"torch_zeros": ""}, {"torch_zeros": "TypeError"}],
    "dtensor.dtensor_zeros_allocates_the_shard": [
        {}, {"zeros": [[[8, 4], 128]] * 4}, {"zeros": [[[2, 4], 128]] * 4}, {"zeros_replicated": [[[2, 4], 32]] * 4},
    ],
    "dtensor.is_a_python_subclass": [
        {}, {"is_tensor_subclass": False}, {"methods": {"redistribute": False}},
        {"methods": {"__torch_dispatch__": False}},
    ],
    "dtensor.the_dispatcher_hands_over": [
        {}, {"bare": ["Tensor", [256, 512], True]}, {"bare": ["DTensor", [1024, 512], True]},
        {"bare": ["DTensor", [256, 512], False]}, {"methods": {"__torch_function__": True}},
    ],
    "dtensor.logical_and_local": [
        {}, {"shard_logical": [256, 512]}, {"shard_local": [[1024, 512]] * 4}, {"shard_whole": False},
        {"shard_mine": [True] * 3 + [False]},
    ],
    "dtensor.placements_are_per_axis": [
        {}, {"mixed_whole": [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]}, {"mixed_whole": [[6.0, 6.0]]},
    ],
    "dtensor.from_local_checks_by_default": [
        {"shapes": ["ValueError"] * 4}, {"shapes": [[2], [3], [4], [5]]},
        {"shapes": ["ValueError"] * 4, "skipped": [SKIPPED[0], ["ValueError"] * 4]},
    ],
    "dtensor.the_local_kernel_runs": [
        {}, {"local": []}, {"local": [[[8, 16], [16, 32]]]}, {"product": ["Tensor", [8, 32]]},
    ],
    "redistribute.column_product_needs_nothing": [
        {}, {"column": op("R")}, {"column": op("S(1)", all_gather=1)}, {"column": op("S(1)", right=False)},
    ],
    "dtensor.operations_arrive_in_dispatch": [{}, {"dtensor": 0}, {"dtensor": 2}, {"in_python": 0}],
    "redistribute.views_gather": [
        {}, {"view(8, 2)": {"collectives": None}}, {"view(8, 2)": {"right": False}},
        {"view(8, 2)": op("refused (RuntimeError)", right=False)}, {"view(8, 2)": op("S(0)"), "view(-1,)": op("S(0)")},
    ],
    "redistribute.sum_gathers": [
        {"sum": op("R", all_gather_into_tensor=1)}, {"sum": {"collectives": None}},
    ],
    "redistribute.inner_split_gives_partial": [
        {}, {"inner": op("R")}, {"inner": op("P(sum)", right=False)}, {"inner": op("P(sum)", all_reduce=1)},
    ],
    "redistribute.using_a_partial_reduces": [
        {}, {"partial_used": op("R", all_reduce=0)}, {"partial_used": op("R", right=False, all_reduce=1)},
        {"partial_forced": op("R", all_reduce=0)}, {"partial_forced": op("R", right=False, all_reduce=1)},
    ],
    "redistribute.collectives_come_where_needed": [
        {}, {"partial_used": op("R", all_reduce=0)}, {"mismatched": {"collectives": None}},
        {"column": op("S(1)", all_gather_into_tensor=1)}, {"partial_added": op("R", all_reduce=1)},
        {"mismatched": {"right": False}},
    ],
    "redistribute.mismatch_gathers": [
        {}, {"mismatched": op("S(0)", all_gather_into_tensor=0)}, {"mismatched": op("S(0)", all_reduce=1)},
        {"mismatched": {"right": False}},
    ],
    "redistribute.communication_math_and_gradients": [
        {}, {"mismatched": {"collectives": None}}, {"partial_used": {"right": False}},
        {"moves": {"P to R": {"right": False}}},
    ],
    "redistribute.results_are_right": [{}, {"partial_used": {"right": False}}],
    "redistribute.shard_to_replicate_gathers": [
        {}, {"moves": {"S(0) to R": {"forward": ["all_gather_into_tensor"] * 2}}},
        {"moves": {"S(0) to R": {"forward": ["all_reduce"]}}},
    ],
    "redistribute.backward_of_gather_is_reduce_scatter": [
        {"moves": {"S(0) to R": {"backward": ["reduce_scatter_tensor"]}}},
        {"moves": {"S(0) to R": {"backward": []}}}, {"moves": {"S(0) to R": {"backward_partial": []}}},
    ],
    "redistribute.gradients_flow": [
        {}, {"moves": {"P to R": {"right": False}}}, {"moves": None},
        {"trained with the batch split": {"right": False}},
        {"trained with the weights split": {"gradients": ["Tensor"]}},
    ],
    "redistribute.training_needs_no_synchronization": [
        {}, {"trained with the batch split": {"right": False}}, {"trained with the weights split": {"right": False}},
        {"trained with the batch split": {"collectives": None}},
    ],
    "redistribute.both_roads_compile": [
        {}, {"whole": {"dtensors_left": 1}}, {"explicit": {"calls": []}}, {"explicit": {"same": False}},
        {"explicit": {"written": 0}}, {"whole": {"written": 1}}, {"explicit": {"mutates": True}},
        {"explicit": {"takes": ["Node", "ProcessGroup"]}},
    ],
    "redistribute.grid_product_gathers": [
        {"grid": {"collectives": {"all_gather_into_tensor": 1}}}, {"grid": {"collectives": None}},
        {"grid": {"collectives": {"all_gather_into_tensor": 1}, "placement": ["R", "S(1)"]}},
    ],
    "redistribute.grid_product_placement": [
        {"grid": {"placement": ["S(0)", "R"]}}, {"grid": {"placement": ["S(0)", "P(sum)"]}},
        {"grid": {"placement": ["R", "R"]}}, {"grid": {"placement": ["S(1)", "R"]}},
    ],
    "redistribute.grid_result_to_replicate_gathers": [
        {}, {"grid": {"to_replicate": {"all_gather_into_tensor": 0}}}, {"grid": {"to_replicate": None}},
        {"grid": {"right": False}},
    ],
    "redistribute.the_grid_is_made_of_new_groups": [
        {}, {"grid": {"groups": None}}, {"grid": {"groups": [[0, 1], [2, 3]]}},
    ],
    "redistribute.compiling_leaves_collectives": [
        {}, *({name: patch} for name in ("asked", "whole") for patch in (
            {"calls": ["aten.mm"]}, {"dtensors_left": 1}, {"same": False}, {"written": 1},
        )),
    ],
    "groups.server_is_a_thread": [
        {}, {"server_threads": 0}, {"client_threads": 1}, {"python_threads": 1}, {"connections": 0}, {"listens_at": []},
    ],
    "groups.the_server_is_bound_to_its_address": [{}, {"listens_at": ["0" * 32]}, {"listens_at": ["00000000"]}],
    "groups.keeps_values_by_key": [{}, {"read_by_other": ""}, {"kept": ["secret", ""]}, {"connections": 0}],
    "groups.values_lie_in_memory": [{}, {"grown": 1 << 20}, {"cuda_initialized": True}, {"server_threads": 0}],
    "groups.requests_are_served": [
        {}, {"read_by_other": ""}, {"counts": [1, 1]}, {"missing_key": ""}, {"held_s": {"wait": 0.0}},
        {"server_threads": 3},
    ],
    "groups.get_blocks_on_a_key": [
        {}, {"missing_get": ""}, {"missing_get": "KeyError: nobody"}, {"held_s": {"get": 0.01}}, {"read_by_other": ""},
    ],
    "groups.wait_takes_a_target_value": [
        {"target_value": ""}, {"target_value": "TypeError"}, {"target_value": "DistStoreError: wait timeout"},
    ],
    "groups.connecting_needs_the_server": [{}, {"no_server": ""}, {"held_s": {"connect": 0.01}}, {"no_server_s": 0.0}],
    "groups.prefixes_keep_keys_apart": [
        {}, {"prefixed": ["b", "b"]}, {"under": ["0//barrier"]}, {"under": ["0//one/barrier"]},
        {"chain": ["HashStore"]},
    ],
    "groups.groups_have_prefixes_of_their_own": [
        {}, {"new_keys": [["0//1//cpu//0/0", "0//1//labkit"]] * 2}, {"new_keys": [["0//1//cpu//0/0"], []]},
        {"new_keys": [["0//1//cpu//0/0"], ["0//2//cpu//0/0"]]}, {"chain": ["PrefixStore", "FileStore"]},
        {"new_keys": [["1//0//cpu//0/0", "0//labkit"], ["2//0//cpu//0/0", "0//labkit"]]}, {"chain": ["TCPStore"]},
        {"own": [["TCPStore", "NoneType"]] * 3}, {"own": [["PrefixStore"] * 2] * 2 + [["TCPStore", "NoneType"]]},
    ],
    "groups.groups_do_not_collide": [{}, {"same_key": ["group 2"] * 2}, {"sums": [2.0, 1.0, 2.0]}],
    "groups.a_group_is_flat_and_a_mesh_a_grid": [
        {}, {"flat": [[0, 1, 2, 3], [4, 5, 6, 7]]}, {"axes": [1, 2, 2]}, {"tensor": [*range(8)]},
    ],
    "groups.grid_of_ranks": [
        {}, {"tensor": [[0, 4, 1, 5], [2, 6, 3, 7]]}, {"coordinates": [[0, 0]] * 8}, {"is_tensor": False},
    ],
    "groups.grid_lives_on_the_cpu": [
        {}, {"tensor_device": "cuda:0"}, {"under_meta": "meta"}, {"is_tensor": False},
        {"of_gpus": ["cuda", "cuda:0"]}, {"of_gpus": ["cpu", "cpu"]},
    ],
    "groups.columns_are_the_first_axis": [{}, {"groups": [{"dp": g["tp"], "tp": g["dp"]} for g in GROUPS]}],
    "groups.rows_are_the_second_axis": [{}, {"groups": [{"dp": g["tp"], "tp": g["dp"]} for g in GROUPS]}],
    "groups.a_rank_has_a_group_an_axis": [
        {}, {"groups": [{"dp": [0, 4]}] * 8}, {"groups": [{"dp": [*range(8)], "tp": [r]} for r in range(8)]},
        {"groups": [{"dp": [r, (r + 1) % 8], "tp": [r, (r + 1) % 8]} for r in range(8)]}, {"distinct": False},
    ],
    "groups.rank_five_is_one_one": [{}, {"coordinate": [0, 1]}],
    "groups.rank_five_talks_to": [{}, {"groups": GROUPS[::-1]}, {"cached": False}, {"made_by_lookups": 1}],
    "groups.coordinates_lead_to_groups": [
        {}, {"groups": [*GROUPS[:7], GROUPS[0]]}, {"coordinate": [1, 2]},
        {"coordinates": [[r // 4, 3 - r % 4] for r in range(8)]},
    ],
    "groups.groups_are_made_once": [
        {}, {"cached": False}, {"made_by_lookups": 2}, {"steps": {"last": [33, 66, 99]}},
        {"steps": {"named": [40, 41, 42]}},
    ],
    "groups.select_gives_the_axis_group": [
        {"pseudo_code": [[0, 4], [1, 5]]}, {"pseudo_code": [[0, 1, 2, 3]]},
    ],
    "groups.group_wraps_a_cxx_class": [
        {}, {"bases": ["labkit.ProcessGroup", "builtins.object"]}, {"in_python": 3}, {"made_of": "labkit.ProcessGroup"},
    ],
    "symmetry.a_hang_is_the_common_end": [
        {}, {"rank_branch": {**DONE, "values": [8, 8]}}, {"timeout": {"odd": "finished: [8, 8]"}},
        {"timeout": {"alike": "RuntimeError Timed out waiting"}}, {"nobody_odd": {"values": [{**RIGHT, "swapped": 0}]}},
        {"one_call_fewer": {"how": "failed"}, "shape_branch": {"how": "failed"}, "data_branch": {"how": "failed"}},
        {"swapped": {"values": [[2, 20], [2, 20]]}}, {"swapped": {"values": [[7, 7], [7, 7]]}},
        {"other_dtype": {"values": [2, 2]}},
    ],
    "symmetry.another_sequence_goes_wrong": [
        {}, {"one_call_fewer": {**DONE, "values": [8, 8]}}, {"one_call_fewer": {"how": "failed"}},
        {"other_kind": {**DONE, "values": [2, 2]}}, {"swapped": {"values": [[2, 20], [2, 20]]}},
        {"other_operation": {"values": [8, 8]}}, {"nobody_odd": {"values": [{**RIGHT, "one_call_fewer": 4}] * 2}},
    ],
    "symmetry.divergence_ends_as_another_order_does": [
        {}, {"other_kind": DONE}, {"data_branch": {"how": "failed"}}, {"shape_branch": DONE}, {"flag_branch": DONE},
        {"functional_order": DONE}, {"other_kind": STUCK}, {"flag_branch": {"waits": ["all_reduce"] * 2}},
    ],
    "symmetry.another_program_goes_wrong": [
        {}, {"other_kind": {**DONE, "values": [2, 2]}}, {"swapped": {"values": [[2, 20], [2, 20]]}},
        {"other_dtype": {"values": [2, 2]}}, {"one_call_fewer": {**DONE, "values": [8, 8]}},
        {"meta_device": {**DONE, "values": [8, 8]}}, {"other_operation": {"values": [8, 8]}},
    ],
    "symmetry.other_metadata_goes_wrong": [
        {}, {"other_dtype": {"values": [2, 2]}}, {"other_shape": {"values": [[0, 6]] * 2}},
        {"other_size": {**DONE, "values": [2, 2]}}, {"meta_device": {**DONE, "values": [8, 8]}},
        {"nobody_odd": {"values": [{**RIGHT, "other_size": 4}] * 2}},  # wrong or an error whatever the ranks do
    ],
    "symmetry.branches_of_a_rank_hang": [
        {}, {"rank_branch": {**DONE, "values": [8, 8]}}, {"data_branch": {"how": "failed"}}, {"rank_branch": STUCK},
        {"nobody_odd": {"values": [{**RIGHT, "rank_branch": 4}] * 2}},
    ],
    "symmetry.functional_collectives_need_symmetry": [
        {}, {"shape_branch": DONE}, {"data_branch": DONE}, {"functional_order": DONE}, *NOT_ALIKE,
        {"nobody_odd": {"values": [{**RIGHT, "functional_order": 4}] * 2}},
    ],
    "symmetry.inputs_branches_and_collectives_are_the_same": [
        {}, *({name: {**DONE, "values": [RIGHT[name]] * 2}} for name in (*DIVERGED, "rank_branch", "functional_order")),
        {"functional_order": {"how": "failed"}}, {"rank_branch": STUCK},
        {"nobody_odd": {"values": [{**RIGHT, "functional_order": 4}] * 2}},
    ],
    "symmetry.diverging_programs_deadlock": [{}, *WRONG_PLACES],
    "symmetry.divergence_times_out": [
        {}, *WRONG_PLACES, {"timeout": {"odd": "finished: [8, 8]"}}, {"timeout": {"odd": "ValueError no"}},
        {"timeout": {"alike": "RuntimeError Timed out waiting"}},  # too short for any program
    ],
    "bucketing.a_break_on_one_rank_parts_collectives": [
        {}, {"bucketed": GATHERED}, {"bucketed": {"how": "failed"}}, {"alike": {"how": "failed"}},
        {"bucketed": {"waits": ["all_gather", "all_gather"]}},
    ],
    "bucketing.breaks_and_recompiles_of_one_rank_are_errors": [
        {}, {"bucketed": GATHERED}, {"alike": {"how": "failed"}}, *RECOMPILED,
    ],
    "bucketing.each_divergence_can_deadlock": [
        {}, {"bucketed": GATHERED}, {"alike": {"how": "failed"}}, *RECOMPILED, {"conditional": DONE},
        {"logged": GATHERED}, {"conditional": STUCK}, {"conditional on none": HUNG},
    ],
    "symmetry.parity_repairs_it": [
        {}, {"flag_branch": DONE}, {"shape_branch": DONE}, {"flag_compared": HUNG | {"says": ""}},
        {"shape_compared": {"says": "PlanError once"}}, *NOT_ALIKE,
    ],
    "symmetry.each_rank_compiles_alone": [
        {}, {"own_graphs": {"values": [OWN_GRAPHS[0]] * 2}}, {"own_graphs": {"values": None}},
    ],
    "symmetry.a_rank_traces_what_it_sees": [
        {}, *({"own_graphs": {"values": [OWN_GRAPHS[0], {**OWN_GRAPHS[1], key: OWN_GRAPHS[0][key]}]}}
              for key in ("branch", "number", "shape")), {"own_graphs": {"values": None}},
    ],
    "symmetry.compiled_alone_correct_together": [
        {}, {"own_graphs": {"values": [OWN_GRAPHS[0]] * 2}}, {"alone": {"values": [[[4, 4, [1, 2]], [4, 8, [1, 2]]]]}},
        {"flag_branch": DONE}, {"alone": {"values": [[[4, 10, []], [4, 8, []]]]}},
    ],
    "symmetry.gathered_counts_differ": [
        {}, {"own_break": {"values": [own_break([[1, 0]] * 2, [[1, 0]] * 2)]}},
        {"own_break": {"values": [own_break([[1, 0], [2, 1]], [[1, 0], [2, 1]])]}},
        {"own_break": {"values": [own_break([[1, 0]] * 2, [[1, 0], [2, 0]])]}},
        {"own_break": {"values": [own_break([[1, 0]] * 2, [[1, 0], [2, 1]], value=4)]}}, {"own_break": HUNG},
    ],
    "symmetry.one_rank_does_not_tell": [
        {}, {"alone": {"how": "hung", "values": None}}, {"alone": {"values": [[[4, 4, [1, 2]], [4, 8, [1, 2]]]]}},
        {"shape_branch": DONE}, {"flag_branch": DONE},
    ],
    "symmetry.recompiles_can_differ": [
        {}, {"alone": {"values": [{"value": 5, "graphs": 2}] * 2}}, {"alone": {"values": None}},
    ],
    "symmetry.collectives_can_agree_on_recompiles": [
        {}, {"guarded": {"values": [{"value": 5, "graphs": 1}, {"value": 5, "graphs": 2}]}},
        {"guarded": {"values": [{"value": 0, "graphs": 2}] * 2}}, {"guarded": {"values": None, "how": "hung"}},
        {"alone": {"values": [{"value": 5, "graphs": 2}] * 2}},
    ],
    "growth.scales_badly": [
        {}, {"whole": {"per_block_low": -0.01}}, {"whole": {"per_block_low": -0.2, "per_block_high": -0.1}},
        {"a_block_takes": "cannot tell"}, {"a_block_takes": "more"},
    ],
    "growth.blocks_compile_faster": [
        {}, {"deepest": SLOWER}, {"deepest": TELLS_NOTHING}, {"deepest": ALIKE},
        {"traced": {"blocks": 12}},
    ],
    "membership.rank_zero_may_stay_outside": [
        {}, {"outside": {"values": [{"graphs": 1, "values": [4, 8]}] * 3}}, {"served": {"values": None, "how": "hung"}},
        {"outside": {"values": None, "how": "hung"}},
        {"served": {"values": [{"answers": [1], "graphs": LAYERS, "calls": 4}] * 3}},
        {"served": {"values": [{"answers": [n], "graphs": g} for n, g in ((1, STAGE), (2, LAYERS), (2, LAYERS))]}},
    ],
    "membership.symmetry_is_of_a_group": [
        {}, {"outside": {"values": None, "how": "hung"}}, {"unlike": {"values": ["outside", "alike", "alike"]}},
        {"outside": {"values": driven(["outside", "alike", "alike"], "alike")}},
        {"outside": {"values": driven(["outside", "refused", "refused"], "refused")}},
    ],
    "membership.the_mesh_is_alike": [
        {}, {"served": {"values": None, "how": "hung"}},
        *({"served": {"values": [{"graphs": g, "calls": n} for g, n in rows]}} for rows in (
            ((STAGE, 4), (LAYERS, 4), (LAYERS, 4)), ((STAGE, 0), (LAYERS, 4), (LAYERS, 8)),
            ((STAGE, 0), (LAYERS, 4), (STAGE, 4)), ((STAGE, 0), (LAYERS, 0), (LAYERS, 0)),
        )),
    ],
    "membership.who_is_outside_is_refused": [
        {}, {"refused": {"values": None, "how": "hung"}}, {"refused": {"values": ["is in it; is in it"] * 3}},
        {"refused": {"values": ["rank 0 is outside of 'mesh' and so on; is in it", *["is in it; is in it"] * 2]}},
    ],
    "membership.rank_zero_differs_and_stays_out": [
        {}, {"refused": {"values": ["is in it; is in it"] * 3}}, {"served": {"values": None, "how": "hung"}},
    ],
    "membership.a_stranger_deadlocks": [
        {"stranger": {"send": HUNG}}, {"stranger": {"send": DONE}}, {"stranger": {"send": {"how": "failed"}}},
    ],
    "membership.the_wrong_group_deadlocks": [
        {}, {"world_inside": DONE}, {"world_inside": {"how": "failed"}}, {"right_members": {**HUNG, "values": None}},
    ],
    "membership.a_wrong_member_deadlocks": [
        {}, {"member_by_mistake": DONE}, {"member_by_mistake": {"how": "failed"}},
        {"right_members": {**HUNG, "values": None}},
    ],
    "training.ddp_communicates_in_hooks": [
        {}, {"ddp": {"right": False}}, {"ddp": {"collectives_in_backward": 4}}, {"ddp": {"eager": {"backward": 0}}},
        {"ddp": {"returned": {"backward": 3}}}, {"ddp": {"a_layer_less": {"behind": 1}}},
        {"ddp": {"a_layer_less": {"backward": 0}}},
    ],
    "released.a_stream_is_kept": [{}, {"CUDAStream": []}, {"said": ["own stream"]}, {"said": ["apart"]}],
    "released.communicators_are_managed": [
        {}, {"NCCLComm": []}, {"methods": ["broadcastUniqueNCCLID"]}, {"said": ["the id"]},
    ],
    "released.the_id_is_broadcast": [{}, {"methods": ["destroyNCCLComms"]}, {"said": ["on demand"]}],
    "released.events_synchronize": [{}, {"CUDAEvent": []}, {"said": ["syncing"]}, {"said": ["waiting"]}],
    "released.threads_streams_and_events": [
        {}, {"thread": []}, {"CUDAStream": []}, {"CUDAEvent": []},
        {"said": ["own stream"]},
    ],
    "released.mpi_is_the_one_installed": [{}, {"included": []}, {"said": ["the id"]}],
    "training.reductions_are_part_of_backward": [
        {}, {"ddp": {"eager": {"backward": 0, "behind": 4}}}, {"fsdp": {"eager": {"backward": 0, "behind": 4}}},
        {"fsdp": {"eager": {"forward": 1}}}, {"fsdp": {"eager": {"callers": None}}},
        {"fsdp": {"eager": {"callers": ["gather in a Function"]}}},
        {"ddp": {"returned": {"backward": 3}}},
    ],
    "sharding.both_paths_bring_communication_into_graphs": [
        {}, {"compiled autograd": {"right": False}}, {"compiled autograd": {"reduces": [4, 4]}},
        {"compiled autograd": {"reduces": [0]}}, {"gathered": {"graphs": [2, 2]}}, {"gathered": {"scatters": 0}},
        {"by hooks": {"DDP": [True, 4, 8]}}, {"by hooks": {"FSDP2": [True, 4, 4]}}, {"by hooks": {"DDP": [True, 0, 0]}},
    ],
    "training.hooks_break_the_graph": [
        {}, {"ddp": {"right_inside": False}}, {"fsdp": {"compiled_right": False}}, {"pieces": {"DDP": [1, 0]}},
        {"pieces": {"FSDP2": [1, 0]}}, {"pieces": {"FSDP2": [2, 0]}}, {"pieces": {"alone": [3, 0]}},
        {"pieces": {"alone": [1, 1]}}, {"pieces": {"DDP, not cut": [3, 0]}},
        {"pieces": {"FSDP2 without its hooks": [2, 1]}}, {"pieces": {"FSDP2 without its hooks": [1, 1]}},
    ],
    "training.compiled_regions_work_with_ddp_and_fsdp": [
        {}, {"ddp": {"right": False}}, {"fsdp": {"compiled_right": False}}, {"ddp": {"graphs": 0}},
        {"fsdp": {"graphs": 0}}, {"ddp": {"right_inside": False}},
    ],
    "sharding.frameworks_are_not_traced_whole": [
        {"whole": {"DDP": ""}}, {"whole": {"FSDP2": ""}}, {"whole": {"a plain module": "Unsupported"}},
        {"whole": {"FSDP2": "RuntimeError: a mistake of ours"}}, {"eager": {"FSDP2": "RuntimeError"}},
    ],
    "sharding.training_needs_another_road": [
        {}, {"functional": {"avg": ""}}, {"gathered": {"right": False}}, {"compiled autograd": {"right": False}},
        {"functional": {"sum": "RuntimeError: a mistake of ours"}},
    ],
    "sharding.each_combination_has_limits": [
        {}, {"second backward": {"compiled": ""}}, {"whole": {"DDP": ""}}, {"whole": {"FSDP2": ""}},
        {"whole": {"a plain module": "Unsupported"}}, {"second backward": {"eager": "RuntimeError"}},
        {"second backward": {"compiled": "RuntimeError: a mistake of ours"}}, {"eager": {"DDP": "RuntimeError"}},
        {"whole": {"DDP": "RuntimeError: a mistake of ours"}},
    ],
    "sharding.fsdp2_is_dtensor": [
        {}, {"fsdp": {"parameters": ["Parameter"]}}, {"fsdp": {"placements": ["R"]}},
    ],
    "backend.reinplaces_collectives": [
        {}, {"code_calls": []}, {"right": False}, {"buffers_before": 2},
        {"code_calls": ["torch.ops._c10d_functional.all_reduce.default(buf0)"]},
    ],
    "backend.ignored_wait_goes_wrong": [
        {"ignored_wait_right": {"compiled": False}}, {"ignored_wait_right": {"compiled": True}},
        {"ignored_wait_right": {"without": True}},
    ],
    "backend.inserted_collectives_are_scheduled": [
        {}, {"inserted": {"overlap scheduling": ["all_gather wait mm", 0]}}, {"inserted_right": False},
        {"inserted": {"default": ["mm mm mm", 0]}},
    ],
    "backend.collectives_are_not_optimized_by_default": [
        {}, {"ways": {"default": ["all_gather mm wait", 1, True]}},
        {"ways": {"default": ["all_gather wait mm mm", 0, True]}},  # two gathers in one
        {"ways": {"default": ["all_gather wait mm", 0, False]}},
        {"ways": {"sink_waits": ["all_gather wait mm", 0, True]}},
    ],
    "backend.overlap_takes_streams": [
        {"ways": {"sink_waits": ["all_gather wait mm", 0, True]}},
        {"ways": {"sink_waits": ["all_gather mm wait", 1, True]}},
        {"ways": {"default": ["all_gather mm wait", 1, True]}},
    ],
    "backend.is_not_bitwise_equal": [{}, {"elements_that_differ": 0}, {"close": False}, {"eager_again_differ": 11}],
    "backend.stages_can_be_told_apart": [
        {}, {"stages_differ": {"eager": {"chain": 3}}}, {"stages_differ": {"eager": {"traced": 0}}},
        {"stages_differ": {"inductor": {"chain": 0}}},
        {"stages_differ": {"aot_eager": {"replaced": 7}}},
        {"stages_differ": {"aot_eager_decomp_partition": {"replaced": 0}}},
    ],
    "backend.fusion_leaves_out_casts": [
        {}, {"pointwise": {"eager": 0, "rounded once": 0}}, {"pointwise": {"eager": 9, "rounded once": 4}},
    ],
    "backend.passes_move_collectives": [
        {}, {"ways": {"sink_waits": ["all_gather wait mm", 0, True]}},
        {"ways": {"sink_waits": ["all_gather mm wait", 1, False]}},
        {"ways": {"default": ["all_gather mm wait", 1, True]}},
    ],
    "stream_code.same_stream_fuses": [
        {}, {"kernels": {"one_stream": [triton("stream1", "sin"), triton("stream1", "cos")]}},
        {"kernels": {"reduced": [triton("stream1", "sin"), triton("stream1", "sum")]}},
        {"kernels": {"one_stream": [triton("no stream", "cos sin")]}},
        {"kernels": {"plain": []}}, {"written": False},
    ],
    "stream_code.an_event_stops_fusion": [
        {}, {"kernels": {"event_between": [triton("stream1", "cos sin"), triton("stream2", "tanh")]}},
        {"kernels": {"wait_between": [triton("stream2", "tanh"), triton("stream1", "cos sin")]}},
        {"kernels": {"event_between": []}}, {"written": False},
        {"kernels": {"one_stream": [triton("stream1", "sin"), triton("stream1", "cos")]}},
    ],
    "stream_code.replacements_keep_their_stream": [
        {}, {"kernels": {"softmaxed": [triton("default_stream", "amax"), triton("stream1", "sum")]}},
        {"kernels": {"softmaxed": []}}, {"written": False},
    ],
    "stream_code.more_kernels": [
        {}, {"kernels": {"streamed": [triton("stream1", "cos sin tanh")]}}, {"kernels": {"plain": []}},
    ],
    "stream_offload.copies_follow_their_layers": [
        {}, {"with": {"kept": [["relu", 64], ["relu_1", 64]]}}, {"with": {"forward": [["mm", "kernel", ["x"], True]]}},
        {"with": {"forward": [
            ["relu", "kernel", ["x"], True], ["relu_1", "kernel", ["relu"], True], ["off", "offload", ["relu"], False],
            ["off_1", "offload", ["relu_1"], False],
        ]}},
        {"with": {"forward": [  # nothing of the first layer
            ["mm", "kernel", ["x"], True], ["mm_1", "kernel", ["mm"], True], ["off", "offload", ["mm_1"], False],
        ]}},
        {"one": {"log": ["user's copies"]}}, {"one": {"left": 32}}, {"one": {"right": False}},
        {"one": {"error": "no driver"}},
    ],
    "stream_offload.reloads_come_a_layer_early": [
        {}, {"with": {"backward": []}},
        {"with": {"backward": [
            ["in_1", "reload", ["off_1"], False], ["w_1", "wait", ["in_1"], False], ["mm_3", "kernel", ["w_1"], True],
            ["in", "reload", ["off"], False], ["w", "wait", ["in"], False], ["mm_4", "kernel", ["w"], True],
        ]}},
        {"with": {"backward": [  # all of them before the first layer
            ["in_1", "reload", ["off_1"], False], ["in", "reload", ["off"], False], ["w_1", "wait", ["in_1"], False],
            ["mm_3", "kernel", ["w_1"], True], ["mm_4", "kernel", ["w_1"], True], ["w", "wait", ["in"], False],
        ]}},
        {"over a fast link": {"backward": []}},
    ],
    "stream_offload.bytes_are_carried_for_bytes_kept": [
        {}, {"with": {"kept": [["relu", 64], ["relu_1", 64]]}}, {"with": {"carried": 0}}, {"without": {"carried": 8}},
        {"one": {"log": ["user's copies"]}},
    ],
    "stream_graphs.beta_since": [
        {}, {"torch": "2.11.0"}, {"frees": {"error": "BackendCompilerFailed: no"}}, {"claimed": "2.14"},
    ],
    "stream_inside.the_next_work_is_delayed": [
        {}, {"backward": [], "other backward": []}, {"error": "BackendCompilerFailed: no"},
        {"backward": [*summed(), ["late", "kernel", "sin", "s1", ["mul"], []]]},
        {"returned": {"backward": ["mul"]}},
        {"backward": [*summed(), ["s", "synchronize_event", "s", "default", [], ["e5"]]]},
        {"backward": without(summed(), "mul_2"), "other backward": without(summed(), "mul_2")},
    ],
    "stream_inside.prefix_fills_the_table": [
        {}, {"prefix": []}, {"table": ["stream 1"]}, {"prefix": ["LOAD_ATTR store_user_object_weakrefs"]},
    ],
    "stream_inside.sums_on_the_first_user": [
        {}, {"backward": []}, {"error": "BackendCompilerFailed: no"},
        {"other backward": summed("s2", "s1", "s2")},  # on the same stream, whoever is the first
        {"other backward": summed()},
    ],
    "stream_inside.an_event_behind_the_sum": [
        {}, {"backward": []}, {"error": "BackendCompilerFailed: no"}, {"backward": without(summed(), "r1")},
        {"backward": without(summed(), "w1")},
        {"backward": [*without(summed(), "w1"), *without(summed(), "mul", "add_1", "r1", "free", "mul_2", "tanh")]},
        {"backward": summed(then="s2")},
    ],
    "stream_inside.the_write_back_comes_behind_the_record": [
        {}, {"x": {"at records": [2.0]}}, {"x": {"at records": []}}, {"x": {"after": 1.0}},
    ],
    "stream_inside.the_owner_is_known": [
        {}, {"backward": []}, {"error": "BackendCompilerFailed: no"},
        {"backward": [["a", "kernel", "mul", "s1", [], []], ["f", "sync_dealloc", "f", "default", ["a"], ["e", "s2"]]]},
    ],
    "stream_programs.events_order_streams": [
        {}, {"races": {"without an event": 0, "with an event": 0}},
        {"races": {"without an event": 1, "with an event": 1}},
    ],
    "stream_graphs.the_host_goes_on": [
        {}, {"ran": {"streams::sync_dealloc": 0, "streams::wait_event": 1}}, {"ran": {"streams::wait_event": 1}},
        {"ran": {"streams::synchronize_event": 1}},
    ],
    "stream_programs.the_wait_follows_at_once": [
        {}, {"calls": ["all_reduce", "work", "mm", "wait_tensor"]}, {"calls": []},
        {"starts_s": {"compiled": [0.2, 0.0]}}, {"starts_s": {"eager": [0.0, 0.2]}},
        {"starts_s": {"compiled": [0.2, None]}},
        {"calls": ["all_reduce", "wait_tensor", "mm"]},
    ],
    "stream_graphs.contexts_mark_their_nodes": [
        {}, {"forward": [node("sin"), node("mul"), node("cos"), node("mul")]},
        {"forward": [node("sin", 1), node("mul", 1), node("cos", 1), node("mul", 1)]},
        {"forward": [node("sin", 1), node("mul", 2), node("cos", 2), node("mul", 1)]},
        {"nested": {"nodes": [node("sin", 1), node("cos", 2), node("tan", 2), node("exp")]}},
        {"nested": {"nodes": [node("sin", 1), node("cos", 2), node("tan"), node("exp")]}},
    ],
    "stream_graphs.outside_is_default": [
        {}, {"forward": [node("sin", 1), node("add", 2)]}, {"forward": [node("sin"), node("add")]},
    ],
    "stream_graphs.no_stream_is_a_constant": [
        {}, {"stream_constants": 2}, {"dynamo": [node("sin", 1)]}, {"graphs_after_other_streams": 2},
        {"streams_looked_up": [[1, 2], [1, 2]]},
    ],
    "stream_graphs.lookup_by_get_user_obj": [
        {}, {"dynamo": [node("get_external_object_by_index")]}, {"dynamo": [node("sin")]},
    ],
    "stream_graphs.set_current_stream_is_in_the_graph": [{}, {"dynamo": [node("sin", 1)]}],
    "stream_graphs.no_current_stream_operators": [
        {"dynamo": [node("sin", 1)]}, {"forward": [node("set_current_stream"), node("sin", 1)]},
        {"dynamo": [node("sin")]}, {"dynamo": [node("set_stream"), node("sin", 1)]},
        {"dynamo": [node("fork"), node("sin", 1)]},
    ],
    "stream_graphs.other_streams_run_the_same_graph": [
        {}, {"graphs_after_other_streams": 2}, {"streams_looked_up": [[1, 2], [1, 2]]},
        {"streams_looked_up": [[1, 2], []]}, {"stream_constants": 2},
    ],
    "stream_graphs.meta_is_stream_idx": [{"meta_keys": ["stream_idx"]}, {"meta_keys": []}, {"without_stream_idx": 1}],
    "stream_graphs.backward_keeps_the_stream": [
        {}, {"backward": [node("neg", 1), node("cos", 1), node("mul", 1)]},
        {"backward": [node("neg", 2), node("cos", 2), node("mul", 2)]},
        {"backward": [node("neg", 2), node("cos", 1), node("mul", 1), node("mul", 1)]},
        {"backward": [node("neg", 2), node("cos", 1)]},
        {"forward": [node("sin"), node("cos")], "backward": [node("neg"), node("cos")]},
    ],
    "stream_graphs.accumulation_waits": [
        {}, {"backward": [sync("record_event", 3, 1), node("add", 2, come=(2, 1))]}, {"backward": [node("neg", 2)]},
        {"backward": [sync("wait_event", 3, 2), sync("record_event", 3, 1), node("add", 2, come=(2, 1))]},
        {"backward": [node("add", 2, come=(2, 1)), sync("record_event", 3, 1), sync("wait_event", 3, 2)]},
        {"backward": [sync("record_event", 3, 2), sync("wait_event", 3, 2), node("add", 2, come=(2, 1))]},
        {"backward": [sync("record_event", 3, 1), sync("wait_event", 3, 1), node("add", 2, come=(2, 1))]},
        {"backward": [sync("record_event", 3, 1), sync("wait_event", 4, 2), node("add", 2, come=(2, 1))]},
        {"backward": [  # before the gradient is there
            sync("record_event", 3, 1), node("mul", 1), sync("wait_event", 3, 2),
            node("add", 2, come=(2, 1)) | {"made": [0, 1]},
        ]},
    ],
    "stream_graphs.early_record_is_an_error": [
        {}, {"mutates_and_records": {"error": ""}}, {"mutates_and_records": {"error": "NameError: a mistake of ours"}},
        {"mutates_and_records": {"made": 1}},
        {"event": {"error": "RuntimeError: An event was recorded too early"}},
    ],
    "stream_graphs.a_dependent_record_is_an_error": [
        {}, {"records_aside": {"error": "", "nodes": [node("mul"), sync("record_event", 1, 1), node("copy_")]}},
        {"records_aside": {"error": "NameError: a mistake of ours"}}, {"mutates_and_records": {"error": ""}},
    ],
    "stream_graphs.mutation_alone_is_allowed": [
        {}, {"mutates": {"error": "RuntimeError", "nodes": []}}, {"mutates": {"nodes": [node("mul"), node("add", 1)]}},
    ],
    "stream_graphs.synchronize_is_kept": [
        {}, {"frees": {"nodes": [node("cos", 1, "sin"), node("add")]}},
        {"frees": {"nodes": [node("cos", 1, "sin"), node("add"), node(KEPT_SYNC, None, "sin")]}},
        {"frees": {"nodes": [node(KEPT_SYNC, None, "sin"), node("cos", 1), node("add")]}},
        {"frees": {"nodes": [node("cos", 1, "sin"), node(KEPT_SYNC), node("add")]}},  # freed before
        {"frees": {"nodes": [node("cos", 1), node(KEPT_SYNC, None, "sin"), node("add", None, "sin")]}},
        {"frees": {"returned": ["cos", "add", "sin"]}},  # kept to the end
        {"frees": {"nodes": [], "error": "RuntimeError: Backend doesn't support synchronizing streams."}},
    ],
    "stream_graphs.crossing_records_an_event": [
        {}, {"crosses": {"nodes": [node("sin"), node("cos", 1)]}}, {"backward": [node("add", 2)]},
        {"backward": [sync("sync_dealloc", 5, 1, held=False), sync("record_event", 5, 2)]},
        {"backward": [sync("record_event", 5, 1), sync("sync_dealloc", 5, 1, held=False)]},
        {"backward": [sync("record_event", 4, 2), sync("sync_dealloc", 5, 1, held=False)]},
    ],
    **{
        f"stream_graphs.{name}": [
            {}, {"schemas": {name: None}}, {"schemas": {name: f"streams::{name}(SymInt stream, SymInt event) -> ()"}},
            {"schemas": {name: f"streams::{name}(SymInt event_index) -> ()"}},
            {"schemas": {name: schema(name, "Event", "Stream")}}, {"waits": {"nodes": [sync(name, 1)]}},
            {"backward": [node("add", 2)]} | {f: {"nodes": [node("mul")]} for f in ("event", "crosses", "waits")},
        ]
        for name in ("record_event", "wait_event", "wait_stream")
    },
    "stream_graphs.get_user_obj_by_index": [
        {
            "schemas": {"get_user_obj_by_index": "streams::get_user_obj_by_index(SymInt i) -> Stream"},
            "waits": {"nodes": [sync("get_user_obj_by_index", 1, held=False)]},
        },
        {"schemas": {"get_user_obj_by_index": None}}, {"waits": {"nodes": []}},
    ],
    "streams.body_is_functional": [
        {}, {"steps": [{**MUTATED[0], "does": "aten.mul_.Tensor", "writes": True}, *MUTATED[1:]]},
        {"steps": [MUTATED[0], {**MUTATED[1], "takes": ["x"]}, *MUTATED[2:]]}, {"steps": MUTATED[-1:]},
        {"steps": [MUTATED[-1], *MUTATED[:-1]]},
    ],
    "streams.write_back_comes_last": [
        {}, {"steps": [MUTATED[-1], *MUTATED[:-1]]}, {"steps": [*MUTATED[:-1], {**MUTATED[-1], "takes": ["x", "add"]}]},
        {"steps": MUTATED[:-1]}, {"steps": [{**MUTATED[0], "writes": True}, *MUTATED[1:]]},
    ],
    "streams.caller_sees_the_mutation": [
        {}, {"input_after": 1.0}, {"right": False}, {"graphs": 0}, {"steps": [MUTATED[-1], *MUTATED[:-1]]},
    ],
    "logs.graph_breaks_are_shown": [
        {}, {"twice": {"graph_breaks": []}}, {"twice": {"graph_breaks": BROKE[:2]}},
        {"twice": {"graph_breaks": BROKE[::2]}}, {"twice": {"graph_breaks": [*BROKE[:3], BROKE[1]]}},
        {"twice": {"graph_breaks": [BROKE[0].replace(str(PRINT_AT), "1"), *BROKE[1:]]}},
        {"whole": {"graph_breaks": BROKE}},
    ],
    "logs.a_slow_function_is_named": [
        {}, {"compared": ALIKE}, {"compared": FASTER}, {"twice": {"graph_breaks": []}},
        {"whole": {"graph_breaks": BROKE}},
    ],
    "logs.recompiles_are_shown": [
        {}, {"program": {"recompiles": ["[__recompiles] something"]}},
        {"whole": {"recompiles": ["[__recompiles] any"]}},
    ],
    "logs.guards_are_shown": [
        {}, {"program": {"guards": []}}, {"program": {"guards": GUARDED[:1]}},
        {"program": {"guards": [line.replace("4", "N") for line in GUARDED]}},
    ],
    "logs.health_is_shown": [
        {}, {"twice": {"graph_breaks": []}}, {"program": {"recompiles": []}}, {"program": {"guards": []}},
    ],
    "logs.churn_is_told_from_breaks": [
        {}, {"program": {"graph_breaks": BROKE}}, {"program": {"graph_code": SHOWN[:2]}},
        {"program": {"recompiles": []}}, {"program": {"guards": []}}, {"calls_s": [0.9, 0.001, 0.001, 0.001]},
    ],
    "logs.graph_code_is_shown": [
        {}, {"program": {"graph_code": [f"[{n}/0] [__graph_code] TRACED GRAPH" for n in range(2)]}},
        {"twice": {"graph_breaks": BROKE[:2]}},
        {"program": {"graph_code": []}}, {"program": {"graph_code": ["[0/0] [__graph_code] x.sin().cos()"]}},
        {"whole": {"graph_code": ["[3/0] [__graph_code] x.sin()", "[4/0] [__graph_code] y.cos()"]}},
    ],
}  # fmt: skip

BASE |= contract_records.BASE | cold_records.BASE | gpu_records.BASE | since_records.BASE
CASES |= contract_records.CASES | cold_records.CASES | gpu_records.CASES | since_records.CASES
CASES |= {
    "routes.explicit_is_more_predictable": [
        {},
        {"explicit": {"collectives": 5}},
        {"left_alone": {"collectives": 2}},
    ],
    "routes.every_operator_has_rules": [
        {},
        {"with_rule": 192, "without": ["aten.nonzero.default"]},
        {"with_rule": 159, "by_decomposition": 34},
    ],
    "routes.coverage_matters": [
        {},
        *({"programs": {"x.nonzero()": how}} for how in ("right", "other numbers")),
    ],
    "routes.dynamic_shapes_are_a_weak_point": [
        {},
        {"uneven": [UNEVEN, UNEVEN]},
        {"uneven": [UNEVEN, {"eager": ODD_ROWS, "compiled": ODD_ROWS}]},
        {"alone": [5, 4]},
    ],
    "routes.the_example_is_lowered": [
        {},
        {"lowered": {"calls": KEPT_CALLS}},
        {"lowered": {"written": 2}},
        {"lowered": {"dtensors_left": 1}},
        {"lowered": {"same": False}},
    ],
    "routes.dtensor_varies_more": [
        {},
        {"uneven": [UNEVEN, UNEVEN]},
        {"uneven": [UNEVEN, {"eager": ODD_ROWS, "compiled": ODD_ROWS}]},
        {"written_out": [UNEVEN, {"eager": EVEN_ROWS, "compiled": ODD_ROWS}]},
        {"nonzero": [{"DTensor": "", "local": ""}]},
        {"nonzero": [{"DTensor": "RuntimeError: no", "local": "RuntimeError: no"}]},
    ],
    "routes.caching_saves_time": [
        {},
        {"second": [0, 1]},
        {"other_shape": [1, 0]},
        {"emptied": [1, 0]},
        {"first": [1, 0]},
        {"times": SLOWER},
        {"times": TELLS_NOTHING},
        {"times": ALIKE},
    ],
    "routes.the_example_has_overhead_in_eager": [
        {},
        {"times": FASTER},
        {"times": TELLS_NOTHING},
        {"times": ALIKE},
    ],
}


def patched(record: Record, patch: Record) -> Record:
    """A copy with the patch merged in; None takes an entry's content away."""
    result = deepcopy(record)
    for key, value in patch.items():
        if value is None:
            old = result.pop(key, None)
            if isinstance(old, (dict, list)):
                result[key] = type(old)()
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = patched(result[key], value)
        else:
            result[key] = deepcopy(value)
    return result


def reference_cases() -> dict[str, list[Record]]:
    """The checks of past figures: the real tables with the row's figure, and with another one."""
    rows = {row.check: row for row in load().rows if row.check}
    names = [name for name in CHECKS if name.startswith("reference.")]
    return {
        name: [{"claimed": rows[name].figure}, {"claimed": "12345"}, {"claimed": "no figure"}]
        + [{"claimed": "12-13 graphs"}] * (name == "reference.run_13_graphs")
        for name in names
    }
