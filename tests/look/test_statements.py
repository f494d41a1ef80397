"""What a look says of tables of ranks, where a false sentence is near: made by hand, read as from a run."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

from labkit.look import found, made, switches
from labkit.look.causes import causes
from labkit.look.effects import TYPES as EFFECTS
from labkit.look.folds import folded
from labkit.look.loads import TYPES as LOADS
from labkit.look.made import Made
from labkit.records.record import TABLES
from labkit.report import Report

GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, {0}][{0}, 1]cpu"):
        y: "f32[4, {0}][{0}, 1]cpu" = L_x_.view(4, {0});  L_x_ = None
        z: "f32[4, {0}][{0}, 1]cpu" = y * {1};  y = None
        return (z,)
"""
WRAPPER = "torch/_dynamo/external_utils.py:67 (inner)"
SENDS, RECEIVES = "c10d::send", "c10d::recv_"


def table(types: dict[str, str], rows: list[dict[str, Any]], rank: int) -> pd.DataFrame:
    """A table of one rank; what a row leaves out is empty."""
    empty = {"str": "", "bool": False, "int64": 0, "float64": 0.0, "object": None}
    return pd.DataFrame(
        [{name: empty[kind] for name, kind in types.items()} | row | {"rank": rank} for row in rows],
        columns=list(types),
    ).astype(types)


def look(*ranks: dict[str, list[dict[str, Any]]], **about: Any) -> found.Look:
    """What a look makes of ranks, each with the rows of its tables."""
    types = TABLES | {f"all_{part}": TABLES[part] for part in found.WHOLE}
    types |= found.HELD | {
        "asked": made.TYPES,
        "guards": found.GUARDS | {"rank": "int64"},
        "effects": EFFECTS,
        "loads": LOADS,
    }
    reports = []
    for rank, rows in enumerate(ranks):
        rows = rows | {f"all_{part}": rows.get(part, []) for part in found.WHOLE}
        tables = {name: table(kinds, rows.get(name, []), rank) for name, kinds in types.items()}
        facts = {"rank": rank, "world_size": len(ranks), "origin_ns": 0, "clock": "", "steps": 6, **about}
        reports.append(Report(f"rank-{rank}", "train.py", "gloo · cpu", tables, provenance=facts))
    return found.together(reports)


def step(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of one recorded step."""
    marked = {"kind": "forward", "name": "labkit.step", "end_us": 100.0}
    timed = [row | {"start_us": 10.0 * i, "end_us": 10.0 * i + 5} for i, row in enumerate(rows, 1)]
    return [row | {"thread": "main"} for row in (marked, *timed)]


def region(name: str = "Net.forward", compile_id: str = "0/0") -> dict[str, Any]:
    return {"kind": "region", "name": name, "compile_id": compile_id, "place": "train.py:7"}


def message(name: str) -> dict[str, Any]:
    return {"kind": "collective", "name": name, "place": "train.py:9"}


def ran(code: str, *events: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """A rank that runs one region with a graph."""
    graph = {"compile_id": "0/0", "name": "Net.forward", "ops": 2, "code": code, "digest": code}
    return {"graphs": [graph], "events": step(*(events or (region(),)))}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (GRAPH.format(16, 2), "graphs that differ in sizes only: 0/0 Net.forward"),
        (
            GRAPH.format(8, 3),
            "ranks differ: the graph of 0/0 Net.forward: only numbers differ (2 and 3) between",
        ),
        (GRAPH.format(8, 2).replace("*", "+"), "ranks differ: in step 0, rank 0 and 1: region Net.forward"),
    ],
)
def test_ranks_that_ran_graphs_of_other_sizes_or_numbers_took_the_same_branch(other, said):
    looked = look(ran(GRAPH.format(8, 2)), ran(other))
    assert said in looked.verdict()
    (fix,) = [cause.fix for cause in causes(looked) if "ranks differ" in cause.said] or [""]
    assert ("same branches" in fix) == ("region" in said) and ("rank's own" in fix) == ("numbers" in said)


def test_ranks_that_compiled_nothing_before_they_failed_are_read():
    assert look({}, {}).steps == 0 and look({}, {}).differing("dynamo") == []


def test_the_splits_of_an_exchange_are_sizes():
    code = (
        'y: "f32[{0}, 8][8, 1]cpu" = torch.ops._c10d_functional.all_to_all_single(x, [{0}, 4], [{0}, 2], "0")'
    )
    looked = look(ran(code.format(40)), ran(code.format(24)))
    assert looked.apart() == "" and looked.resized() == ["0/0 Net.forward"]


@pytest.mark.parametrize(
    ("orders", "staged"),
    [
        (
            ([region(), message(SENDS), message(RECEIVES)], [message(RECEIVES), region(), message(SENDS)]),
            True,
        ),
        (([region(), message(SENDS)], [message(RECEIVES), region()]), True),
        (([region(), message(SENDS), message(RECEIVES)],) * 2, False),  # a ring: every rank does the same
        (([region()], [region()]), False),
    ],
)
def test_stages_are_known_by_the_order_of_their_messages(orders, staged):
    first, second = (
        ran(code, *order) for code, order in zip(("a = b.sin()", "a = b.cos()"), orders, strict=True)
    )
    looked = look(first, second)
    assert looked.staged == staged and (looked.apart() == "") == staged
    assert ("as the stages of a pipeline do" in looked.verdict()) == staged
    same = look(*(ran("a = b.sin()", *order) for order in orders))
    assert same.verdict().startswith("all ranks did the same")


def test_what_stages_hold_together_is_compared():
    held = {"kind": "parameters under DDP", "name": "0.weight", "ranks": "0,1", "shape": "(2,)"}
    ranks = [
        ran(code, *order) | {"replicas": [held | {"fingerprint": code}]}
        for code, order in (("a", [region(), message(SENDS)]), ("b", [message(RECEIVES), region()]))
    ]
    assert "1 of 1 parameters under DDP differ: 0.weight" in look(*ranks).verdict()


def shared(places: list[str]) -> list[dict[str, Any]]:
    return [
        {"place": at, "name": "Linear.forward", "calls": 6, "shared": True, "inside": True} for at in places
    ]


def again(reasons: list[str], name: str = "inner", place: str = WRAPPER) -> dict[str, list[dict[str, Any]]]:
    """A rank that compiled a function again for these guards."""
    ids = [f"1/{i}" for i in range(1, len(reasons) + 1)]
    rows = [
        {"compile_id": i, "name": name, "reason": r, "place": place}
        for i, r in zip(ids, reasons, strict=True)
    ]
    took = [{"compile_id": i, "name": name, "place": place, "seconds": 2.0} for i in ids]
    return ran("a") | {"recompiles": rows, "compiles": took}


def test_modules_of_torch_that_share_a_function_are_compiled_once_each():
    sizes = "tensor 'fn._parameters['bias']' size mismatch at index 0. expected 5, actual 2"
    (cause,) = causes(look(again([sizes]) | {"asked": shared(["train.py:15", "train.py:16"])}))
    assert "Linear.forward at train.py:15, Linear.forward at train.py:16 were compiled 2 times" in cause.said
    assert "once for each object" in cause.why and "mark_dynamic" not in cause.fix and not cause.library
    batch = "tensor 'args[0]' size mismatch at index 0. expected 16, actual 24"
    for places, guards in (
        (["train.py:15"], [batch]),
        (["train.py:15", "train.py:16"], [sizes, batch, batch]),
    ):
        (cause,) = causes(look(again(guards) | {"asked": shared(places)}))
        assert cause.place == "train.py:15" and "mark_dynamic" in cause.fix
        assert "dimension 0 of `args[0]` changes (16 -> 24)" in cause.why


@pytest.mark.parametrize(
    ("reason", "explanation", "fix"),
    [
        ("Unsupported Tensor.item() call", "Dynamo does not support tracing `Tensor.item()`.", "outside"),
        (
            "Data dependent operator",
            "Operator `aten._local_scalar_dense.default` has a non-Tensor output",
            "outside",
        ),
        ("Data-dependent branching", "Detected data-dependent branching", "torch.cond"),
    ],
)
def test_a_value_and_the_code_that_guards_on_it_are_one_cause(reason, explanation, fix):
    text = f"{reason}\n  Explanation: {explanation}\n"
    at, after = "train.py:15 (Net.loss)", "Net.loss, resumed at train.py:15"
    broke = {
        "compile_id": "0/0",
        "kind": "break",
        "name": "Net.loss",
        "reason": reason,
        "place": at,
        "text": text,
    }
    rank = again(["___stack0 == 0.9921", "___stack0[1] == 40"], after, at)
    rank |= {"breaks": [broke | {"executed": 1}]}
    (cause,) = causes(look(rank))
    assert cause.said.startswith(f"graph break: {reason}; {after} was compiled 3 times") and cause.place == at
    assert "the value from the break changes (it was 0.9921)" in cause.why and "___stack" not in cause.why
    assert "4.00 s of compiling" in cause.cost and "outside compiled code" in cause.cost and fix in cause.fix
    # another guard is another cause
    rank["recompiles"][0]["reason"] = "tensor 'x' size mismatch at index 0. expected 16, actual 24"
    assert len(causes(look(rank | {"all_recompiles": rank["recompiles"]}))) == 2


def test_what_is_compiled_again_with_the_programs_own_code_is_torchs():
    def again(name: str, place: str, reason: str) -> dict[str, Any]:
        return {"name": name, "place": place, "reason": reason, "compile_id": f"{place}/1"}

    ddp = {
        "name": "DistributedDataParallel.forward",
        "place": "train.py:30",
        "calls": 9,
        "shared": True,
        "ddp": True,
    }
    size = "tensor '{}' size mismatch at index 1. expected 8, actual 12"
    outer = again("inner", WRAPPER, size.format("args[0]"))
    helper = again("helper", "python/contextlib.py:299 (helper)", "GLOBAL_STATE changed: grad_mode")
    own = again("Net.forward", "train.py:9 (Net.forward)", size.format("tokens"))
    looked = look({"asked": [ddp], "graphs": [{"ops": 4}], "recompiles": [outer, helper, own]})
    assert [one.said for one in causes(looked)] == ["Net.forward was compiled 2 times"]
    assert [str(one) for one in folded(looked)] == [
        "torch's own, nothing to do: compiled again with the program's functions: DistributedDataParallel.forward,"
        " helper"
    ]
    # for a reason of its own it is a cause
    own["reason"] = "self.rate == 0.1"
    looked = look({"asked": [ddp], "graphs": [{"ops": 4}], "recompiles": [outer, helper, own]})
    assert len(causes(looked)) == 2


def test_a_size_that_changes_with_a_text_is_not_to_be_made_dynamic():
    def fix(*reasons: str) -> str:
        rows = [
            {
                "name": "Net.forward",
                "place": "train.py:9 (Net.forward)",
                "reason": reason,
                "compile_id": f"0/{i}",
            }
            for i, reason in enumerate(reasons, 1)
        ]
        (cause,) = causes(look({"recompiles": rows}))
        return cause.fix

    size = "tensor 'x' size mismatch at index 1. expected 10, actual 16"
    assert "mark_dynamic" in fix(size)
    assert "once for each value" in fix(size, "mode == 'fake'") and "mark_dynamic" not in fix(
        size, "mode == 'fake'"
    )


def test_a_single_token_of_a_served_model_is_no_batch_to_drop():
    rows = [
        {
            "name": "Llama.forward",
            "place": "serve.py:9 (Llama.forward)",
            "reason": "tensor 'ids' size mismatch at index 1. expected 12, actual 1",
            "compile_id": "0/1",
        }
    ]
    served = [row | {"name": "labkit.forward"} if row["kind"] == "forward" else row for row in step(region())]
    (decoding,) = causes(look({"events": served, "recompiles": rows}))
    (training,) = causes(look({"events": step(region()), "recompiles": rows}))
    assert "a single token after a prompt" in decoding.fix and "drop" not in decoding.fix
    assert training.fix.startswith("pad it, or drop that batch")


def test_a_compile_without_a_graph_says_what_stood_before_it():
    def why(ddp: bool, *breaks: dict[str, Any]) -> tuple[str, str]:
        row = {"place": "train.py:7", "name": "Sequential.forward", "calls": 6, "ddp": ddp}
        rank = {"events": step(region()), "breaks": list(breaks), "asked": [row]}
        (cause,) = causes(look(rank))
        return cause.why, cause.fix

    broke = {"kind": "break", "name": "inner", "reason": "skipped", "place": "train.py:9", "text": "skipped"}
    said, fix = why(True, broke)
    assert "broke before the first layer" in said and fix.endswith("DDP(torch.compile(module))")
    said, fix = why(False)  # module.compile() of nn.Sequential: no break, and no graph
    assert "broke" not in said and "before fully_shard" in fix and "your own" in fix


def test_frames_that_are_given_up_for_a_break_of_torchs_own_are_named():
    hook = "torch/distributed/fsdp/_fully_shard/_fsdp_common.py:30 (wrapper)"
    inner = ["lib/model.py:44 (Model.forward)", "lib/model.py:80 (Decoder.forward)", hook]
    text = "skipped\n\nIn libraries:\n" + "\n".join(f"  {place}" for place in inner)
    row = {"reason": "skipped", "place": "train.py:9 (main)", "text": text}
    rows = [
        row | {"kind": "skip", "name": name, "compile_id": f"{i}/0"}
        for i, name in enumerate(["Decoder.forward", "wrapper"])
    ]
    (one,) = folded(look({"breaks": [*rows, row | {"kind": "break", "name": "Model.forward"}]}))
    assert str(one).endswith(
        "1 break of FSDP2 (0 executed in each); given up for it: lib/model.py:80 (Decoder.forward)"
    )


class Adapter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.body(x)

    def features(self, x):
        return self.body(x)


def test_a_method_is_named_as_itself_and_a_module_by_its_forward():
    model, layer = Adapter(), torch.nn.Linear(2, 2)
    given: dict[str, Any] = {
        "Adapter.forward": model,
        "Adapter.features": model.features,
        "Linear.forward": layer,
        "relu": torch.nn.functional.relu,
    }
    assert {name: Made.of(one, {}).name for name, one in given.items()} == {name: name for name in given}
    assert [Made.of(one, {}).shared for one in given.values()] == [False, False, True, True]
    in_place: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda one, **_: in_place.append(one))
        model.compile()
        layer.compile()
    assert [Made.of(one, {}).name for one in in_place] == ["Adapter.forward", "Linear.forward"]
    assert not Made.of(in_place[1], {}).shared, "torch compiles its call, not a function around it"


def test_a_method_that_is_called_does_not_hide_a_part_that_is_not():
    model = Adapter()
    features, part = Made.of(model.features, {}), Made.of(model.body, {})
    features.calls = 6
    rank = ran("a") | {"asked": made.asked([features, part]).to_dict("records")}
    assert list(switches.idle(look(rank))["name"]) == ["Linear.forward"]
    whole = Made.of(model, {})
    whole.calls = 6
    rank["asked"] = made.asked([whole, part]).to_dict("records")
    assert switches.idle(look(rank)).empty, "the graph of the whole model has it"
