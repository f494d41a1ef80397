"""What a look says of tables of ranks, where a false sentence is near: made by hand, read as from a run."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import pytest
import torch
from oddrank.look import callables, page, replicas, rows, summary, switches, trained, training
from oddrank.look.breaks import Break, again_of
from oddrank.look.callables import Made
from oddrank.look.causes import _fix, causes, shown
from oddrank.look.library_breaks import folded
from oddrank.look.look import HELD, RECORDED, WHOLE, Look, together
from oddrank.look.owners import library_of, owner_of
from oddrank.look.steps import Options, Steps
from oddrank.record import Compile, Mark, Range, Record, Tables
from oddrank.record.guard_words import words

from labkit.report import Report

GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, {0}][{0}, 1]cpu"):
        y: "f32[4, {0}][{0}, 1]cpu" = L_x_.view(4, {0});  L_x_ = None
        z: "f32[4, {0}][{0}, 1]cpu" = y * {1};  y = None
        return (z,)
"""
LIBRARIES = "/opt/lib/python3.11/site-packages/"
WRAPPER = (f"{LIBRARIES}torch/_dynamo/external_utils.py", 67, "inner")
SENDS, RECEIVES = "c10d::send", "c10d::recv_"
EMPTY = {"str": "", "bool": False, "int64": 0, "float64": 0.0, "object": None}


@dataclass
class Rank:
    """What a rank wrote: what it compiled and ran, and the rows of the other tables."""

    compiles: list[Compile] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    held: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def report(self, rank: int, about: dict[str, Any]) -> Report:
        """Its record; what was compiled in the steps is all that was compiled."""
        told = Tables()
        told.compiles += self.compiles
        told.marks += self.marks
        told.ranges += self.ranges
        tables = rows.frames(told)
        tables |= {f"all_{part}": tables[part] for part in WHOLE}
        for name, types in HELD.items():
            mine = [{n: EMPTY[kind] for n, kind in types.items()} | row for row in self.held.get(name, [])]
            tables[name] = pd.DataFrame(mine, columns=list(types)).astype(types)
        tables = {name: table.assign(rank=rank) for name, table in tables.items()}
        steps = sum(one.kind == "forward" for one in self.ranges)
        facts = {"rank": rank, "origin_ns": 0, "clock": "", "steps": 6, RECORDED: steps, **about}
        return Report(f"rank-{rank}", "train.py", "gloo · cpu", tables, provenance=facts)


def look(*ranks: Rank, **about: Any) -> Look:
    """What a look makes of ranks."""
    about["world_size"] = len(ranks)
    return together([one.report(rank, about) for rank, one in enumerate(ranks)])


def step(*ran: Range, name: str = "oddrank.step") -> list[Range]:
    """The ranges of one recorded step."""
    for i, one in enumerate(ran, 1):
        one.start_us, one.end_us = 10.0 * i, 10.0 * i + 5
    return [Range(0, 0, "forward", name, 0.0, 100.0), *ran]


def region(compile_: str = "0/0") -> Range:
    return Range(0, 0, "region", f"Torch-Compiled Region: {compile_}", 0.0, 0.0, compile=compile_)


def message(name: str) -> Range:
    return Range(0, 0, "collective", name, 0.0, 0.0)


def ran(code: str, *ranges: Range, **held: list[dict[str, Any]]) -> Rank:
    """A rank that runs one region with a graph."""
    graph = Compile(0, "0/0", "train.py", 7, "Net.forward", outcome="graph", operators=2, digest=code, runs=1)
    text = {"compile": "0/0", "name": "Net.forward", "code": code}
    return Rank([graph], ranges=step(*(ranges or (region(),))), held={"texts": [text], **held})


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        (
            "tensor 'x' dtype mismatch. expected Float, actual Double",
            "the dtype of `x` changes (Float -> Double)",
        ),
        ("GLOBAL_STATE changed: grad_mode ", "gradients are on in one call and off in another (`grad_mode`)"),
        ("len(self.items) == 3", "the length of `self.items` changes (it was 3)"),
        ("L['self']._modules['a'].rate == 0.1", "`self.a.rate` changes (it was 0.1)"),
        (
            "tensor 'p' rank mismatch. expected 2, actual 3",
            "the number of dimensions of `p` changes (2 -> 3)",
        ),
        (
            "expected type of 'p' to be a tensor type, ' but found <class 'NoneType'>",
            "`p` is a tensor in one call and None in another",
        ),
    ],
)
def test_a_guard_in_words(guard, said):
    assert words(guard) == said


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (GRAPH.format(16, 2), "graphs that differ in sizes only: 0/0 Net.forward"),
        (
            GRAPH.format(16, 2).replace("f32", "f64"),
            "ranks differ: in step 0, rank 0 and 1: region Net.forward",
        ),
        (
            GRAPH.format(8, 3),
            "ranks differ: the graph of 0/0 Net.forward: only numbers differ (2 and 3) between",
        ),
        (GRAPH.format(8, 2).replace("*", "+"), "ranks differ: in step 0, rank 0 and 1: region Net.forward"),
    ],
)
def test_ranks_that_ran_graphs_of_other_sizes_or_numbers_took_the_same_branch(other, said):
    looked = look(ran(GRAPH.format(8, 2)), ran(other))
    assert said in "; ".join([*looked.compared(), looked.verdict()])
    (fix,) = [cause.fix for cause in causes(looked) if "ranks differ" in cause.said] or [""]
    assert ("same branches" in fix) == ("region" in said) and ("rank's own" in fix) == ("numbers" in said)


def test_ranks_that_compiled_nothing_before_they_failed_are_read():
    assert look(Rank(), Rank()).steps == 0 and look(Rank(), Rank()).differing("dynamo") == []


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
    assert same.verdict() == "ranks did not differ in what was compared"


def test_what_stages_hold_together_is_compared():
    held = {"kind": "parameters under DDP", "name": "0.weight", "ranks": "0,1", "shape": "(2,)"}
    ranks = [
        ran(code, *order, replicas=[held | {"fingerprint": code}])
        for code, order in (("a", [region(), message(SENDS)]), ("b", [message(RECEIVES), region()]))
    ]
    assert "1 of 1 parameter under DDP differs: 0.weight" in look(*ranks).verdict()


def test_of_one_parameter_it_is_said_in_singular():
    held = {"name": "scale", "ranks": "0,1", "shape": "(2,)", "fingerprint": "a", "dtype": "float32"}
    kinds = [replicas.OTHER, replicas.DDP, replicas.STARTED]
    table = pd.DataFrame(
        [
            dict.fromkeys(replicas.TYPES, "") | held | {"rank": rank, "kind": kind, "norm": 1.0}
            for kind in kinds
            for rank in (0, 1)
        ]
    )
    assert list(replicas.compared(table).values()) == [
        "1 parameter under DDP is equal",
        "1 plain parameter that was equal on all ranks before the first step is equal",
    ]
    assert replicas.left_out(table) == ["1 plain parameter in neither DDP nor fully_shard was not compared"]


def test_parameters_that_are_not_compared_are_counted_once_and_fsdp1_has_its_name():
    def left_out(*names: str) -> list[str]:
        """Of ranks that hold parts of other sizes."""
        rows = [
            {"rank": rank, "kind": replicas.OTHER, "name": name, "ranks": "0,1" * rank}
            for name in names
            for rank in (0, 1)
        ]
        table = pd.DataFrame(
            [dict.fromkeys(replicas.TYPES, "") | row for row in rows], columns=list(replicas.TYPES)
        )
        return replicas.left_out(table)

    sharded = [f"_fsdp_wrapped_module.{name}" for name in ("up.weight", "down.weight")]
    assert left_out(*sharded) == ["2 parameters under FSDP1 were not compared"]
    assert (
        left_out("table", *sharded)[1] == "1 plain parameter in neither DDP nor fully_shard was not compared"
    )
    assert left_out() == []


def test_what_may_differ_is_no_part_of_the_verdict():
    held = {"kind": "buffers", "name": "norm.mean", "ranks": "0,1", "shape": "(2,)"}
    ranks = [ran("a", region(), replicas=[held | {"fingerprint": value}]) for value in "ab"]
    text = summary.text(look(*ranks))
    assert "\nno finding: 1 of 1 buffer differs: norm.mean (" in text
    assert text.endswith("\nranks did not differ in what was compared (the page lists it)")
    assert "no finding" not in summary.text(look(ranks[0], ranks[0]))


def test_messages_are_named_beside_the_count_of_collectives():
    sender, receiver = (
        ran("a", region(), message(SENDS)),
        ran("a", region(), message(RECEIVES), message(SENDS)),
    )
    said = "sends and receives per step, beside collectives: 1 on rank 0, 2 on rank 1"
    looked = look(sender, receiver)
    assert looked.messages() == said and said in summary.text(looked) and said[1:] in page.html(looked)
    assert look(ran("a", region()), ran("a", region())).messages() == ""


def shared(places: list[str]) -> list[dict[str, Any]]:
    return [
        {"place": at, "name": "Linear.forward", "calls": 6, "shared": True, "inside": True} for at in places
    ]


def again(reason: str, at: tuple[str, int, str], number: int = 1, **more: Any) -> Compile:
    """A compile for which this guard had failed."""
    id_ = f"{at[2]}/{number}"
    said = {"outcome": "graph", "operators": 1, "why": reason, "reasons": (reason,), "seconds": 2.0}
    return Compile(0, id_, *at, **said | more)


def wrapped(*reasons: str, **held: list[dict[str, Any]]) -> Rank:
    """A rank that compiled torch's own function around modules again for these guards."""
    rank = ran("a", **held)
    rank.compiles += [again(reason, WRAPPER, number) for number, reason in enumerate(reasons, 1)]
    return rank


def test_modules_of_torch_that_share_a_function_are_compiled_once_each():
    sizes = "tensor 'fn._parameters['bias']' size mismatch at index 0. expected 5, actual 2"
    (cause,) = causes(look(wrapped(sizes, asked=shared(["train.py:15", "train.py:16"]))))
    assert "Linear.forward at train.py:15, Linear.forward at train.py:16 were compiled 2 times" in cause.said
    assert "once for each object" in cause.why and "mark_dynamic" not in cause.fix and not cause.library
    batch = "tensor 'args[0]' size mismatch at index 0. expected 16, actual 24"
    for places, guards in (
        (["train.py:15"], [batch]),
        (["train.py:15", "train.py:16"], [sizes, batch, batch]),
    ):
        (cause,) = causes(look(wrapped(*guards, asked=shared(places))))
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
    at, resumed = ("train.py", 15, "Net.loss"), "Net.loss, resumed at train.py:15"
    rank = ran("a")
    rank.compiles.append(Compile(0, "1/0", "train.py", 9, "Net.loss", outcome="graph", broke=True, runs=1))
    rank.marks.append(Mark(0, "1/0", *at, "break", name=reason, text=explanation))
    for number, guard in enumerate(("___stack0 == 0.9921", "___stack0[1] == 40"), 1):
        rank.compiles.append(again(guard, ("train.py", 9, "Net.loss"), number, resume=15))
    (cause,) = causes(look(rank))
    assert cause.said.startswith(f"graph break: {reason}; {resumed} was compiled 3 times")
    assert cause.place == "train.py:15 (Net.loss)"
    assert "the value from the break changes (it was 0.9921)" in cause.why and "___stack" not in cause.why
    assert "4.00 s of compiling" in cause.cost and "outside compiled code" in cause.cost and fix in cause.fix
    # another guard is another cause
    rank.compiles[-2].why = "tensor 'x' size mismatch at index 0. expected 16, actual 24"
    assert len(causes(look(rank))) == 2


def test_the_costliest_cause_stands_first():
    rows = [
        again("self.rate == 0.1", ("train.py", line, name)) for line, name in ((9, "Net.a"), (19, "Net.b"))
    ]
    for seconds in ((1.0, 8.0), (8.0, 1.0)):
        for row, took in zip(rows, seconds, strict=True):
            row.seconds = took
        first = "Net.a" if seconds[0] > seconds[1] else "Net.b"
        assert causes(look(Rank(rows)))[0].said == f"{first} was compiled 2 times"


def test_what_is_compiled_again_with_the_programs_own_code_is_torchs():
    ddp = {
        "name": "DistributedDataParallel.forward",
        "place": "train.py:30",
        "calls": 9,
        "shared": True,
        "ddp": True,
    }
    size = "tensor '{}' size mismatch at index 1. expected 8, actual 12"
    outer = again(size.format("args[0]"), WRAPPER)
    helper = again("GLOBAL_STATE changed: grad_mode", (contextlib.__file__, 299, "helper"))
    own = again(size.format("tokens"), ("train.py", 9, "Net.forward"))
    rank = Rank([outer, helper, own], held={"asked": [ddp]})
    looked = look(rank)
    assert [one.said for one in causes(looked)] == ["Net.forward was compiled 2 times"]
    assert [str(one) for one in folded(looked)] == [
        "torch's own, nothing to do: compiled again because the program's functions are:"
        " DistributedDataParallel.forward, contextlib.helper"
    ]
    # a model's code may be a library's, and have been compiled for more reasons
    own.file, own.why = f"{LIBRARIES}lib/model.py", size.format("input_ids")
    later = again(
        "tensor 'mask' dtype mismatch. expected Float, actual Half", (own.file, 9, "Net.forward"), 2
    )
    rank.compiles.append(later)
    assert [one.said for one in causes(look(rank))] == ["Net.forward was compiled 3 times"]
    rank.compiles.pop()
    # for a reason of its own it is a cause
    own.why = "self.rate == 0.1"
    assert len(causes(look(rank))) == 2


def test_a_size_that_changes_with_a_text_is_not_to_be_made_dynamic():
    def fix(*reasons: str) -> str:
        at = ("train.py", 9, "Net.forward")
        compiles = [again(reason, at, number) for number, reason in enumerate(reasons, 1)]
        (cause,) = causes(look(Rank(compiles)))
        return cause.fix

    size = "tensor 'x' size mismatch at index 1. expected 10, actual 16"
    assert "mark_dynamic" in fix(size)
    assert "one compile for each value of `mode`" in fix(
        size, "mode == 'fake'"
    ) and "mark_dynamic" not in fix(size, "mode == 'fake'")


def test_a_size_that_changes_beside_what_is_expected_is_to_be_made_dynamic():
    grad, size = (
        "GLOBAL_STATE changed: grad_mode ",
        "tensor 'x' size mismatch at index 0. expected 8, actual 5",
    )
    for reasons in ([grad, size], [size, grad], [grad]):
        compiles = [again(reason, ("train.py", 9, "Net.forward"), n) for n, reason in enumerate(reasons, 1)]
        (cause,) = causes(look(Rank(compiles)))
        assert ("mark_dynamic" in cause.fix) == (size in reasons) != cause.expected


def test_a_function_without_a_graph_was_traced():
    at = ("train.py", 9, "Net.forward")
    for operators, said in ((0, "Net.forward was traced 2 times"), (1, "Net.forward was compiled 2 times")):
        outcome = "graph" if operators else "empty"
        rank = Rank([again("self.rate == 0.1", at, outcome=outcome, operators=operators)])
        (cause,) = causes(look(rank))
        assert cause.said == said and (" of tracing " in cause.cost) == (not operators)


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("Failed to trace builtin operator print", "remove the output"),
        ("call_method dist.all_reduce: c10d op with async_op=True", "use the functional collectives"),
        (
            "tensor 'x' requires_grad mismatch. expected requires_grad=0",
            "expected once, as where the first block",
        ),
        ("GLOBAL_STATE changed: grad_mode ", "expected once: one compile with gradients and one without"),
        ("self.param_groups[0]['betas'][0] == 0.95", "keep this setting constant, or make it a tensor"),
        ("tensor 'x' dtype mismatch. expected Float, actual Double", "give every call an input of one dtype"),
        ("___check_obj_id(self.hook, 7)", "make the object once and keep it"),
        ("self.rate == 0.1", "make the number a tensor"),
        ("self.items == 'a'", ""),
    ],
)
def test_what_to_do_is_known_by_the_reason(reason, fix):
    assert fix in _fix(reason) and bool(_fix(reason)) == bool(fix)


def test_a_single_token_of_a_served_model_is_no_batch_to_drop():
    guard = "tensor 'ids' size mismatch at index 1. expected 12, actual 1"
    compiles = [again(guard, ("serve.py", 9, "Llama.forward"))]
    (decoding,) = causes(look(Rank(compiles, ranges=step(region(), name="oddrank.forward"))))
    (training,) = causes(look(Rank(compiles, ranges=step(region()))))
    assert "one for single tokens" in decoding.fix and decoding.expected
    assert training.fix.startswith("pad it, or drop that batch") and not training.expected


@pytest.mark.parametrize(
    ("guard", "settled", "other"),
    [
        (
            "self.red_dim == -2",
            "expected once each: the recorded steps run all 2",
            "make the number a tensor",
        ),
        (
            "___check_obj_id(self.net, 140), type=<class 'P'>",
            "expected once each",
            "where several modules share",
        ),
        (
            "tensor 'ids' size mismatch at index 1. expected 12, actual 1",
            "one for single tokens",
            "pad it, or drop",
        ),
    ],
)
def test_code_that_every_step_goes_on_to_use_is_expected(guard, settled, other):
    """A value that changes from time to time leaves code that runs no more, or compiles in the steps."""
    first = Compile(0, "Net.forward/0", "train.py", 9, "Net.forward", outcome="graph", operators=1)

    def fix(runs: tuple[int, int], during: bool) -> str:
        compiles = [
            replace(one, runs=n, during=during)
            for one, n in zip((first, again(guard, first_at)), runs, strict=True)
        ]
        rank = Rank(compiles, ranges=step(region()))
        report = rank.report(0, {"world_size": 1})
        report.tables["all_compiles"]["during"] = True
        (cause,) = causes(together([report]))
        assert cause.expected == cause.fix.startswith("expected")
        return cause.fix

    first_at = ("train.py", 9, "Net.forward")
    assert settled in fix((2, 1), False)
    for runs, during in (((0, 2), False), ((2, 1), True)):
        assert other in fix(runs, during)


def test_three_causes_stand_open_and_what_needs_nothing_comes_last():
    guards = ["GLOBAL_STATE changed: grad_mode ", *(f"self.rate == 0.{n}" for n in range(4))]
    rows = [again(guard, ("train.py", n, f"Net.f{n}"), seconds=9.0 - n) for n, guard in enumerate(guards)]
    looked = look(Rank(rows))
    lines = shown(causes(looked))
    assert [line for line in lines if line[0].isdigit()] == [
        *(f"{n}. train.py:{n} (Net.f{n}): Net.f{n} was compiled 2 times" for n in (1, 2, 3, 4)),
        "5. train.py:0 (Net.f0): Net.f0 was compiled 2 times; expected once: one compile with gradients and one"
        " without",
    ]
    assert sum(line.startswith("   fix: ") for line in lines) == 3
    assert page.html(looked).count("<li><details>") == 2


def test_a_forward_in_a_decorator_has_the_name_of_its_class():
    def decorated(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return fn(*args)

        return wrapper

    class Llama(torch.nn.Module):
        @decorated
        def forward(self, x):
            return x

    class Bert(torch.nn.Module):
        forward = decorated(lambda self, x: x)

    code = Llama.forward.__code__
    row = Compile(0, "0/0", code.co_filename, code.co_firstlineno, "decorated.wrapper")
    model, known = torch.nn.Sequential(Llama()), {}
    callables.name_forwards([row], [Made.of(model, {})], known)
    assert row.name == "Llama.forward"
    del model
    row.owner = ""
    callables.name_forwards([row], [], known)
    assert row.name == "Llama.forward", "it is gone by now"
    other, row.owner = Bert(), ""
    callables.name_forwards([row], [Made.of(other, {})], known)
    assert row.name == "decorated.wrapper", "either may have been called"


def test_a_compile_without_a_graph_says_what_stood_before_it():
    def why(ddp: bool, *marks: Mark) -> tuple[str, str]:
        row = {"place": "train.py:7", "name": "Sequential.forward", "calls": 6, "ddp": ddp}
        empty = Compile(0, "0/0", *WRAPPER, outcome="empty", broke=bool(marks))
        (cause,) = causes(look(Rank([empty], list(marks), step(region()), {"asked": [row]})))
        return cause.why, cause.fix

    said, fix = why(True, Mark(0, "0/0", "train.py", 9, "step", "break", name="skipped"))
    assert "broke before the first layer" in said and fix.endswith("DDP(torch.compile(module))")
    said, fix = why(False)  # module.compile() of nn.Sequential: no break, and no graph
    assert "broke" not in said and "before fully_shard" in fix and "your own" in fix


def test_frames_that_are_given_up_for_a_break_of_torchs_own_are_named():
    model, decoder = ((f"{LIBRARIES}lib/model.py", line, name) for line, name in (
        (44, "Model.forward"), (80, "Decoder.forward")))  # fmt: skip
    hook = (f"{LIBRARIES}torch/distributed/fsdp/_fully_shard/_fsdp_common.py", 30, "wrapper")
    stack = (("train.py", 9, "main"), model, decoder, hook)
    rank = Rank()
    for depth, (frame, outcome) in enumerate(((model, "graph"), (decoder, "gave-up"), (hook, "gave-up")), 1):
        broke = {"outcome": outcome, "broke": outcome == "graph", "chain": stack[:depth]}
        rank.compiles.append(Compile(0, f"{depth}/0", *frame, **broke))
        kind = "break" if outcome == "graph" else "gave-up"
        deeper = stack[depth + 1 :]
        rank.marks.append(Mark(0, f"{depth}/0", *frame, kind, name="skipped", chain=deeper, report="skipped"))
    (one,) = folded(look(rank))
    assert str(one).endswith(
        "1 break of FSDP2, not executed; given up for it: lib/model.py:80 (Decoder.forward)"
    )


BUCKETS = "torch._inductor.config.bucket_all_gathers_fx"


def effect(
    before: str = "", after: str = "", note: str = "", switch: str = "bucket_all_gathers_fx"
) -> dict[str, Any]:
    value = "'all'" if note == "on" else ""
    return {"switch": switch, "value": value, "before": before, "after": after, "note": note, "times": 1}


ON, DDP_ASKED = effect(note="on"), {"name": "Net.forward", "ddp": True, "calls": 5}


@pytest.mark.parametrize(
    ("effects", "switch", "got"),
    [
        ([ON, effect("2 all_gather", "1 all_gather")], BUCKETS, "did change a graph: before: 2 all_gather; after: 1"),
        ([ON, effect("1 gather, 9 ops", "1 gather, 9 ops")], BUCKETS, "a bucket needs two collectives"),
        ([ON, effect("2 all_gather", "2 all_gather")], BUCKETS, "torch gives no reason"),
        ([ON, effect()], BUCKETS, "no effect, because no graph has a collective in it"),
        ([ON], BUCKETS, "cannot tell, because every graph came from Inductor's cache"),
        ([ON, ON, effect("2 g", "1 g")], BUCKETS, "cannot tell for 1 of 2 graphs: they came from a cache"),
        ([effect("2 g", "1 g")], BUCKETS, ""),  # nobody asked for it
        ([effect("2", "2", switch="DDPOptimizer")], "DDPOptimizer", "into 2 graphs; DDP has 2 buckets"),
        ([effect("1", "1", switch="DDPOptimizer")], "DDPOptimizer", "no effect, because it found the parameters of 1"),
        ([effect("0", "2", switch="DDPOptimizer")], "DDPOptimizer", "cannot tell DDP's buckets"),
        ([], "DDPOptimizer", "no effect, because no graph was compiled inside of DDP's forward"),
        ([effect("5", "0", switch="FSDP2 hooks")], "fully_shard", "bypasses FSDP2's hooks in 1 of 1 modules"),
        ([effect("5", "5", switch="FSDP2 hooks")], "fully_shard", "called 5 times; FSDP2's hook before the forward"),
    ],
)  # fmt: skip
def test_a_switch_says_what_it_did_or_why_it_had_no_effect(effects, switch, got):
    asked = [DDP_ASKED] if switch == "DDPOptimizer" else []
    found = switches.rows(look(*(ran("a", effects=effects, asked=asked) for _ in range(2))))
    said = list(found[found["switch"] == switch]["got"])
    assert len(said) == bool(got) and all(got in one for one in said), found.to_string()
    other = look(ran("a", effects=effects, asked=asked), ran("a", effects=[ON, effect("7 g", "3 g")]))
    if effects[:1] == [ON] and "7 g" not in got:  # each rank's own words where they are not one's
        (said,) = switches.rows(other).set_index("switch").loc[[BUCKETS], "got"]
        assert said.startswith("rank 0: ") and "; rank 1: did change a graph: before: 7 g" in said


def breaks_at(*libraries: str, report: str = "") -> Break:
    return Break(0, "0/0", "break", "Net.forward", "skipped", "train.py:3", libraries, "", (), report, 1)


@pytest.mark.parametrize(
    ("met", "owner", "library"),
    [
        (
            breaks_at("torch/nn/parallel/distributed.py:9 (f)"),
            "DDP",
            "torch/nn/parallel/distributed.py:9 (f)",
        ),
        # below the hook only what calls further: it is the hook's
        (
            breaks_at("torch/distributed/fsdp/a.py:3 (g)", "torch/_dynamo/eval_frame.py:9 (f)"),
            "FSDP2",
            "torch/distr",
        ),
        (
            breaks_at("torch/optim/adam.py:3 (step)", "python/contextlib.py:9 (inner)"),
            "the optimizer",
            "python/",
        ),
        # the program's own call of what torch does not trace
        (breaks_at("python/pprint.py:3 (pformat)"), "", "python/pprint.py:3"),
        (breaks_at("lib/a.py:3 (f)", "torch/_tensor.py:9 (item)"), "", "lib/a.py:3"),
        (breaks_at(report="Developer debug context: module: torch.optim, qualname: f"), "the optimizer", ""),
        (breaks_at(), "", ""),
    ],
)
def test_whose_a_break_is(met, owner, library):
    assert owner_of(met) == owner
    assert library_of(met).startswith(library) and bool(library_of(met)) == bool(library)


def test_what_was_compiled_again_before_a_look_is_none_of_its_recompiles():
    at, told = ("train.py", 9, "Net.forward"), Tables()
    told.compiles += [again("self.rate == 0.1", at, number, during=number > 1) for number in (1, 2)]
    assert [row.compile for row in again_of(told)] == ["Net.forward/2"]


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
    rank = ran("a", asked=callables.asked([features, part]).to_dict("records"))
    assert list(switches.idle(look(rank))["name"]) == ["Linear.forward"]
    whole = Made.of(model, {})
    whole.calls = 6
    rank.held["asked"] = callables.asked([whole, part]).to_dict("records")
    assert switches.idle(look(rank)).empty, "the graph of the whole model has it"


MADE = {
    "how": "DDP",
    "name": "Net",
    "steps": 3,
    "backwards": 6,
    "averaged": 6,
    "bytes": 2_000_000,
    "sums": True,
    "skipped": "",
}


@pytest.mark.parametrize(
    "changed",
    [{}, {"backwards": 3, "averaged": 3}, {"averaged": 5}, {"sums": False}, {"skipped": "why"}],
    ids=str,
)
def test_gradients_are_averaged_without_need_where_each_of_several_backwards_does(changed):
    table = pd.DataFrame([{"rank": rank, "no_sync": "", **MADE, **changed} for rank in (0, 1)])
    said = [one.said for one in trained.synchronized(table)]
    assert said == ([] if changed else [
        "DDP averaged the gradients of Net in each of 6 backwards, though 2 backwards make one optimizer.step:"
        " 0.333 of 0.667 MB a step are not needed"
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"input": "a", "loss": "b"}, {"input": "a", "loss": "b"}, True),
        ({"input": "a", "loss": "b"}, {"input": "a", "loss": "c"}, False),
        ({"input": "a", "loss": "b"}, {"input": "d", "loss": "b"}, False),
        ({"loss": "b"}, {"loss": "b"}, False),  # a loss that was averaged is equal, whatever the batch
        ({"input": "a"}, {"input": "a"}, False),
    ],
)
def test_ranks_have_one_batch_where_inputs_and_losses_are_equal(one, other, same):
    rows = [
        {"rank": rank, "ranks": "0,1", "step": step, "kind": kind, "fingerprint": f"{print_}{step}"}
        for rank, seen in enumerate((one, other))
        for step in (3, 4)
        for kind, print_ in seen.items()
    ]
    assert bool(trained.batches(pd.DataFrame(rows))) == same


def test_the_first_loss_that_is_no_number_is_said_with_its_rank():
    steps = Steps(Options())
    found = []
    for rank, losses in enumerate(([1.0, 2.0, float("inf"), float("nan")], [3.0, 1.0, 2.0, 1.0])):
        one = training.Training(steps)
        steps.open, steps.rec = True, Record()
        for steps.found, loss in enumerate(losses, 3):
            one._backward([torch.tensor(loss)])
        found.append(one.tables(rank, 0, {})["seen"])
    (said,) = trained.broken(pd.concat(found))
    assert (
        said.said == "the loss is inf in step 5 of the run on rank 0, and in 1 of the recorded steps after it"
    )
    assert trained.broken(found[1]) == [] and trained.batches(pd.concat(found)) == []


@pytest.mark.parametrize(
    ("held", "said"), [(True, "1 of 2 parameters (a) had no gradient"), (False, "no module holds")]
)
def test_a_parameter_without_gradient_in_all_steps_on_all_ranks_is_named(held, said):
    rows = [
        {
            "rank": rank,
            "name": name,
            "held": held,
            "steps": 3,
            "missing": 3 if name == "a" else rank,
            "zero": 0,
            "still": 0,
            "dtype": "float32",
            "rate": 0.1,
            "calls": "",
        }
        for rank in (0, 1)
        for name in "ab"
    ]
    (one,) = trained.gradients(pd.DataFrame(rows))
    assert said in one.said


def test_a_step_that_a_failure_cut_short_is_no_difference_as_far_as_it_came():
    def of(*ranks: Rank, ended: bool) -> Look:
        abouts = [{"world_size": 2, "last step ended": ended or rank == 0} for rank in range(2)]
        return together(
            [one.report(rank, about) for rank, (one, about) in enumerate(zip(ranks, abouts, strict=True))]
        )

    code, other = GRAPH.format(8, 2), message("c10d::allreduce_")
    whole, part = ran(code, region(), other), ran(code, region())
    assert "nothing more" in of(whole, part, ended=True).apart()
    looked = of(whole, part, ended=False)
    assert looked.apart() == "" and "as far as the shorter rank came" in looked.compared()[0]
    assert "rank 1 did not end the last recorded step" in looked.notes[-1]
    parted = ran(code, message("c10d::broadcast_"))  # before it failed, it did something else
    assert "broadcast" in of(whole, parted, ended=False).apart()
