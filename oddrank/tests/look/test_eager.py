"""`oddrank look --eager`: what differs from eager is rounding, another algorithm, wrong, or cannot be told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oddrank.look import eager, eager_page, replays, replicas
from oddrank.look.agreement import (
    ALGORITHM,
    CACHE,
    CANNOT_TELL,
    EQUAL,
    FASTPATH,
    ROUNDING,
    WRONG,
    Answer,
    Region,
    Value,
    judge,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from oddrank import command as cli

SCRIPT = str(Path(__file__).parent / "scripts" / "eager.py")
TOL = 1.3e-6
# of 20 steps of training with Inductor: the loss compiled and with the last bit changed, of its size
GROWN = [(1.1e-7, 1.3e-7), (6e-7, 3e-7), (4e-6, 9e-7), (2e-5, 3e-6), (9e-5, 2e-5), (8e-4, 9e-5), (3e-2, 4e-3)]
FINE = Region(
    0, "9 operators", 1, "output 0", 4e-7, 5e-7, 4e-7, 6e-7, 1.0, TOL, 1.2e-7, parts="gelu at train.py:9"
)
ODD = replace(FINE, gap=2e-2, compiled=2e-2, operator="gelu at train.py:9")
CALL = "dist.all_reduce at train.py:12"


def values(
    *pairs: tuple[float, float], captured: float = 0.0, again: float = 0.0, kind: str = "losses"
) -> list[Value]:
    return [
        Value(0, step, kind, "", TOL, compiled, again, captured, nudged)
        for step, (compiled, nudged) in enumerate(pairs, 1)
    ]


@pytest.mark.parametrize(
    ("found", "regions", "kind", "where"),
    [
        ([], [], CANNOT_TELL, ""),
        (values((0.0, 0.0), (1e-6, 0.0)), [], EQUAL, ""),
        (values(*GROWN), [FINE], ROUNDING, "gelu at train.py:9"),
        # a step at which it grows faster than the last bit does: a choice may have turned over, no region is wrong
        (values(*GROWN[:4], (0.5, 2e-5)), [FINE], CANNOT_TELL, "gelu at train.py:9"),
        (values((2e-2, 1e-7)), [ODD], WRONG, "gelu at train.py:9"),
        (values((2e-2, 1e-7)), [replace(ODD, operator="")], WRONG, "9 operators"),
        (values((2e-2, 1e-7)), [replace(ODD, setting=CACHE)], WRONG, "9 operators"),
        # farther from float64 than eager and small: an algorithm of its own, where one operator has it alone
        (values((5e-5, 1e-7)), [replace(ODD, gap=5e-5, compiled=5e-5)], ALGORITHM, "gelu at train.py:9"),
        (values((5e-5, 1e-7)), [replace(ODD, gap=5e-5, compiled=5e-5, operator="")], CANNOT_TELL, "gelu at train.py:9"),
        # as far from eager as that, and nearer to float64: eager rounds
        (values((2e-2, 9e-3)), [replace(ODD, compiled=1e-6, eager=2e-2)], ROUNDING, "gelu at train.py:9"),
        # Dynamo's graphs run in eager differ as well, and at once
        (values((0.9, 1e-7), captured=0.9, kind="gradients"), [replace(FINE, rewritten=[CALL])], WRONG, CALL),
        (values((0.9, 1e-7), captured=0.9), [FINE], WRONG, ""),
        (values((2e-6, 1e-7), captured=2e-6), [FINE], ROUNDING, "gelu at train.py:9"),
        # under autocast, rounding is as coarse as bfloat16
        (values((4e-3, 2e-3), captured=4e-3), [replace(FINE, eps=7.8e-3)], ROUNDING, "gelu at train.py:9"),
        # a rounding before it may have turned over a choice
        (values((1e-7, 1e-7), captured=1e-7) + values((0.9, 1e-7), captured=0.9), [FINE], CANNOT_TELL, ""),
        (values((0.9, 1e-7), captured=0.9, again=0.8), [ODD], CANNOT_TELL, ""),
        (values((0.9, 1e-7)), [replace(FINE, note="its inputs are too large")], CANNOT_TELL, "gelu at train.py:9"),
        (values((0.9, 1e-7)), [replace(ODD, draws="dropout at train.py:7", compiled=None)], CANNOT_TELL, ""),
        (values((0.9, 1e-7)), [], CANNOT_TELL, ""),
        # nothing rounds otherwise: a last bit that makes as much is a coincidence
        (values((2e-6, 1e-6)), [replace(FINE, gap=0.0)], CANNOT_TELL, ""),
    ],
)  # fmt: skip
def test_the_verdict_on_tables(found, regions, kind, where):
    answer = judge(found, regions)
    assert (answer.kind, answer.where if where else "") == (kind, where), answer


def test_a_setting_explains_a_difference_only_where_the_whole_script_then_agrees():
    drawn = replace(ODD, draws="dropout at train.py:7", compiled=None, setting="fallback_random", operator="")
    found = values((0.9, 1e-7))
    assert judge(found, [drawn]).kind == CANNOT_TELL
    answer = judge(found, [drawn, FINE], values((0.0, 1e-7)))
    assert (
        answer.kind == ALGORITHM
        and answer.where == "dropout at train.py:7"
        and "fallback_random" in answer.fix
    )
    settled = replace(FINE, under="fallback_random")
    rounded = judge(found, [drawn, settled], values(*GROWN))
    assert rounded.kind == ALGORITHM and "apart by rounding only" in rounded.fix
    assert judge(found, [drawn], values(*GROWN)).kind == CANNOT_TELL, "nobody measured how it rounds then"
    left = judge(found, [drawn, ODD], values((2e-2, 1e-7)))
    assert left.kind == WRONG and left.where == "gelu at train.py:9", "a setting hides no error beside it"


def test_a_fast_path_of_eager_inference_is_no_error_where_both_agree_without_it():
    found = values((0.9, 1e-7), captured=0.9, kind="outputs")
    asked = judge(found, [FINE])
    assert asked.kind == WRONG and asked.ask == (FASTPATH,)
    assert judge(found, [FINE], values((1e-7, 1e-7))).kind == ALGORITHM
    assert judge(found, [FINE], found) == replace(asked, ask=())


def test_a_line_that_draws_random_numbers_is_named_once():
    drawn = replace(ODD, draws="dropout at train.py:7", compiled=None)
    assert judge(values((0.9, 1e-7)), [drawn, replace(drawn, rank=1)]).why.count("dropout") == 1


def test_a_tensor_that_only_one_run_has_is_named():
    one = Value(1, 2, "gradients", "attn.q.weight", TOL, float("inf"), 0.0, float("inf"), 0.0, "compiled")
    answer = judge([one], [replace(FINE, rewritten=[CALL])])
    assert (
        answer.kind == WRONG and "only the compiled run has" in answer.said and "attn.q.weight" in answer.said
    )


def test_runs_are_compared_step_by_step_and_small_tensors_by_the_large_ones():
    def kept(loss: float, weight: float, bias: float) -> dict[int, dict[str, dict[str, torch.Tensor]]]:
        named = {"step 2, w": torch.tensor([weight, 1.0]), "step 2, b": torch.tensor([bias])}
        losses = {"step 1": torch.tensor(loss), "step 2": torch.tensor(loss)}
        return {0: {"outputs": {}, "losses": losses, "gradients": named, "parameters": {}}}

    base = kept(2.0, 3.0, 1e-12)
    other = kept(2.0, 3.3, -1e-12)
    del other[0]["losses"]["step 2"]
    rows = eager.table({eager.EAGER: base, eager.COMPILED: other, eager.AGAIN: base, eager.REGIONS: base})
    assert [(one.step, one.kind, one.name) for one in rows] == [
        (1, "losses", ""), (2, "losses", ""), (2, "gradients", "w"), (2, "gradients", "b")]  # fmt: skip
    assert rows[0].compiled == 0 and rows[0].captured is None
    assert rows[1].compiled == float("inf") and rows[1].only == "eager"
    assert rows[0].again == 0 and rows[2].again == pytest.approx(0.0909, rel=1e-3), "of two compiled runs"
    assert rows[2].compiled == pytest.approx(0.1, rel=1e-3)
    assert rows[3].compiled < TOL, "a gradient that is nothing but rounding"


def test_the_page_shows_text_as_text():
    body = {
        "program": "a.py <b>",
        "ranks": 2,
        "runs": [{"name": "<i>", "folder": "x", "seconds": 2.0, "failed": ""}],
    }
    page = eager_page.html(body, Answer(WRONG, "<script>x</script>", "<u>"), values((0.5, 1e-7)), [ODD])
    assert "<script>x" not in page and "<u>" not in page and "<i>" not in page
    assert eager_page.text(Answer(EQUAL, "all 3 tensors")) == "equal: all 3 tensors"


def test_a_graph_that_holds_parameters_of_a_model_gives_them_no_second_name():
    model = nn.Linear(3, 3)
    traced = torch.fx.GraphModule(
        {"params_0": model.weight, "own": nn.Parameter(torch.ones(1))}, torch.fx.Graph()
    )
    traced.params_0, traced.own = model.weight, nn.Parameter(torch.ones(1))
    found = [(name, tensor) for _, name, _, tensor, _ in replicas.everything()]
    assert [name for name, tensor in found if tensor is model.weight] == ["weight"]
    assert any(tensor is traced.own for _, tensor in found), "a graph's own parameters count"


# --- regions run again, in this process ---


class Found:
    """Stands for the steps of a program, in its first one."""

    found = 1

    def also(self, done):
        pass


def again(fn, *args, backend="aot_eager"):
    torch._dynamo.reset()
    kept = replays.Replays(Found(), 1, 0, Path("unused"), lambda said: [said])  # type: ignore[arg-type]
    stop = replays.torch_names.around_compiled(kept._around)
    try:
        torch.compile(fn, backend=backend)(*args)
    finally:
        stop()
    (pair,) = kept._kept
    return replays.measure(pair[1], pair[0], lambda said: [said])[0]


def off_by_a_percent(graph, inputs):
    """A backend with an error: its gelu is 1 % too large."""
    for node in graph.graph.nodes:
        if node.target is torch.nn.functional.gelu:
            node.target = lambda x, **more: torch.nn.functional.gelu(x, **more) * 1.01
    graph.recompile()
    return graph.forward


def naive_variance(graph, inputs):
    """A backend that computes a variance as the mean of the squares without the square of the mean."""
    for node in graph.graph.nodes:
        if node.target == "var":
            node.op, node.target = (
                "call_function",
                lambda x, *_: (x.square().mean() - x.mean().square()) * (64 / 63),
            )
    graph.recompile()
    return graph.forward


def test_a_region_as_eager_has_it_is_equal_with_gradients_mutations_and_random_numbers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.GELU())
    found = again(model, torch.randn(16, 8))
    assert found.gap == 0 and not found.note and found.draws.startswith("dropout")


def test_a_region_runs_again_under_the_autocast_that_it_had():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    with torch.autocast("cpu", torch.bfloat16):
        found = again(model, torch.randn(16, 64))
    assert found.gap == 0 and not found.note and found.eps == torch.finfo(torch.bfloat16).eps


def test_a_checkpoint_in_a_graph_draws_the_same_random_numbers_again():
    def fn(x):
        return checkpoint(lambda y: torch.nn.functional.dropout(y.sin(), 0.5).exp(), x, use_reentrant=False)

    found = again(fn, torch.randn(64, requires_grad=True))
    assert found.gap == 0 and not found.note and found.draws.startswith("checkpoint")


class OwnDropout(torch.autograd.Function):
    """A dropout with other random numbers than torch's; its backward may draw them anew."""

    @staticmethod
    def forward(ctx, x, p, anew):
        ctx.p, ctx.anew = p, anew
        ctx.mask = (torch.rand_like(x) >= p) / (1 - p)
        return x * ctx.mask

    @staticmethod
    def backward(ctx, grad):
        mask = (torch.rand_like(grad) >= ctx.p) / (1 - ctx.p) if ctx.anew else ctx.mask
        return grad * mask, None, None


@pytest.mark.parametrize("anew", [True, False])
def test_random_numbers_that_backward_draws_anew_are_wrong_and_other_ones_are_not(anew):
    def backend(graph, inputs):
        for node in graph.graph.nodes:
            if node.target is torch.nn.functional.dropout:
                node.target = lambda x, p, *_: OwnDropout.apply(x, p, anew)
        graph.recompile()
        return graph.forward

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 3))
    found = again(model, torch.randn(16, 8), backend=backend)
    assert found.gap > 0 and not found.note and (found.unlike > 0.5) == anew, found
    answer = judge(values((0.7, 1e-7)), [found])
    assert (answer.kind == WRONG) == anew and (not anew or answer.where.startswith("dropout"))
    assert not anew or "from that of its own forward" in answer.why


def test_what_a_region_is_given_is_kept_as_it_is():
    def fn(x, slot, weight):
        slot[:, 1] = x[:, 0]
        return (slot @ weight).sin(), torch.nn.functional.scaled_dot_product_attention(x, x, x)

    wide = torch.randn(1, 4).expand(4, 4)
    found = again(fn, wide, torch.zeros(4, 8)[:, 2:6], torch.randn(4, 4, requires_grad=True).t())
    assert not found.note and not found.draws and found.gap == 0, "no copy has other strides"


def test_inputs_that_a_region_changes_are_judged_only_where_a_copy_of_each_is_the_same():
    cache, base = torch.zeros(2, 4), torch.randn(8)

    def write(cache, x):
        cache[:, 1:2].copy_(x)
        return cache.sum()

    found = again(write, cache, torch.randn(2, 1, requires_grad=True))
    assert found.gap == 0 and not found.note, "the cache has a gradient only afterwards"
    found = again(lambda x, y: (x.add_(1), y * 2), base.view(2, 4), base)
    assert "share memory" in found.note and found.gap == 0
    found = again(lambda x, y: x.sin() * y, base[:4], base[4:])
    assert not found.note and found.gap == 0


def test_an_error_of_a_backend_is_found_at_its_operator():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    found = again(model, torch.randn(16, 8), backend=off_by_a_percent)
    assert replays.beyond(found) and found.operator.startswith("gelu"), found
    answer = judge(values((1e-2, 1e-7)), [found])
    assert answer.kind == WRONG and answer.where == found.operator


def test_an_algorithm_of_its_own_is_named_and_is_no_error():
    torch.manual_seed(0)
    found = again(lambda x: x.var() * 2, torch.randn(64) + 30, backend=naive_variance)
    answer = judge(values((1e-5, 1e-7)), [found])
    assert (answer.kind, answer.where[:3]) == (ALGORITHM, "var"), (answer, found)


def test_low_precision_in_another_order_is_rounding():
    def fused(graph, inputs):
        def wide(*args):
            return [one.bfloat16() for one in graph(*(arg.float() for arg in args))]

        return wide

    torch.manual_seed(0)
    found = again(
        lambda x: (x.sin() + x.cos() * 1.1).exp().tanh() * 3, torch.randn(512).bfloat16(), backend=fused
    )
    assert found.gap > found.tolerance * found.size / 8 and found.compiled < found.eager
    assert not replays.beyond(found)


# --- whole scripts ---


@pytest.fixture
def look(tmp_path, monkeypatch, capsys):
    """Run the command here; its exit status, what `eager.json` holds, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str):
        capsys.readouterr()
        status = cli.main(["look", "--eager", "--out", "out", *words])
        printed = capsys.readouterr()
        file = tmp_path / "out" / "eager.json"
        return status, json.loads(file.read_text()) if file.exists() else {}, printed.out + printed.err

    return run


@pytest.mark.slow
def test_a_collective_in_place_that_has_a_gradient_only_when_compiled_is_wrong(look, tmp_path):
    status, body, said = look("--skip", "1", "--steps", "1", SCRIPT, "in-place", "--in-place")
    assert status == 1 and body["answer"]["kind"] == WRONG, said
    assert (
        body["answer"]["where"] == "dist.all_reduce at eager.py:38"
        and "0.up.weight" in body["answer"]["said"]
    )
    assert (tmp_path / "out" / "index.html").exists() and not list(tmp_path.glob("out/*/values-*.pt"))


@pytest.mark.slow
def test_code_that_came_from_the_cache_of_another_rank_is_wrong_on_the_rank_that_has_it(
    look, tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    status, body, said = look("--skip", "1", "--steps", "1", SCRIPT, "baked")
    assert status == 1 and body["answer"]["kind"] == WRONG, said
    assert "on rank 1" in body["answer"]["said"] and "from a cache" in body["answer"]["why"], said


@pytest.mark.slow
def test_a_training_that_inductor_rounds_otherwise_is_rounding(look):
    status, body, said = look(
        "--skip", "0", "--steps", "20", SCRIPT, "long", "--backend", "inductor", "--steps", "20"
    )
    assert status == 0 and body["answer"]["kind"] in (ROUNDING, EQUAL), said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--perturb"],
            "--perturb compares ranks, --eager compares compiled and eager code: give one of them",
        ),
        (["--save", "base.json"], "--save is of one run, and --eager makes several"),
        (["--only", "batch"], "--only is for --perturb"),
        (["--allow", "graph"], "--allow is for --torch and --perturb"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_before_a_rank_starts(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["look", "--eager", *words, SCRIPT, "long"]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
