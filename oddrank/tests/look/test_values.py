"""What a rank computed in the steps of a program, and how far two runs are apart."""

from __future__ import annotations

import math

import pytest
import torch
from oddrank.look import values
from oddrank.look.program import followed
from oddrank.look.steps import Options
from torch import nn


@pytest.fixture
def kept(ranks, tmp_path):
    """Run a program, and let it write what it computed to a folder of this name, as rank 0 or another."""

    def run(name, program, rank=0):
        (tmp_path / name).mkdir(exist_ok=True)
        ranks.run(follow, program, tmp_path / name / f"values-{rank}.pt")
        return tmp_path / name

    return run


def follow(program, path):
    torch._dynamo.reset()
    with followed(Options(1, 2, values=True), lambda steps: steps.keep_values(path)):
        program()


def training(rate=0.1, parts=2, width=3, function=False):
    """Two losses a step; the second is averaged in place after its backward, as for a log."""

    def program():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, width))
        net.register_buffer("seen", torch.zeros(1))
        model, optimizer = torch.compile(net, backend="aot_eager"), torch.optim.SGD(net.parameters(), lr=rate)
        for _ in range(4):
            for part in range(parts):
                loss = model(torch.full((2, 4), part + 1.0)).square().mean()
                torch.autograd.backward([loss]) if function else loss.backward()
                loss.detach().zero_()
            optimizer.step()
            optimizer.zero_grad()

    return program


def test_two_runs_of_one_program_are_equal_bit_by_bit(kept):
    a, b = (kept(name, training(function=name == "b")) for name in "ab")
    mine = values.load(a)[0]
    assert list(mine["losses"]) == [f"step {n}{more}" for n in (1, 2, 3) for more in ("", ", number 2")]
    assert all(loss > 0 for loss in mine["losses"].values()), "as they were at the backward"
    assert set(mine["parameters"]) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert not mine["outputs"], "only of a program without a backward"
    found = values.apart(a, b)
    assert {kind: (one.compared, one.equal, one.absolute) for kind, one in found.kinds.items()} == {
        "losses": (6, True, 0.0),
        "parameters": (4, True, 0.0),
    }
    assert found.left == []


def test_the_parameters_are_those_after_the_last_recorded_step(kept):
    def program():
        torch.manual_seed(0)
        net = nn.Linear(2, 1)
        model, optimizer = torch.compile(net, backend="eager"), torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    folder = kept("a", program)
    torch.manual_seed(0)
    began = nn.Linear(2, 1).weight.detach()
    mine = values.load(folder)[0]
    torch.testing.assert_close(mine["parameters"]["weight"], began - 3 * 0.1)
    assert len(mine["losses"]) == 3


def test_the_largest_difference_is_named_with_its_size(kept):
    a = kept("a", training())
    other = kept("b", training(rate=0.11))
    found = values.apart(a, other)
    mine, theirs = (values.load(folder)[0] for folder in (a, other))
    for kind in ("losses", "parameters"):
        gaps = {name: (mine[kind][name] - theirs[kind][name]).abs().max() for name in mine[kind]}
        sizes = {name: float(gap / mine[kind][name].abs().max()) for name, gap in gaps.items()}
        one = found.kinds[kind]
        assert one.absolute == pytest.approx(float(max(gaps.values())), rel=1e-5)
        assert one.relative == pytest.approx(max(sizes.values()), rel=1e-5)
        assert one.where == f"{max(sizes, key=sizes.get)}, rank 0" and not (one.equal or one.close)
    wide = values.apart(a, other, tolerance=10.0)
    assert all(one.close and not one.equal for one in wide.kinds.values())


def test_what_cannot_be_compared_is_listed(kept):
    a = kept("a", training())
    kept("a", training(), rank=1)
    found = values.apart(a, kept("b", training(parts=1, width=5)))
    assert found.left == [
        "rank 1 has values in one run only",
        "losses of rank 0, in one run only: step 1, number 2, step 2, number 2, step 3, number 2",
        "parameters of rank 0, of another shape or dtype: 1.weight, 1.bias",
    ]
    assert found.kinds["losses"].compared == 3 and found.kinds["parameters"].compared == 2


def test_outputs_of_a_model_that_is_served_are_compared(kept):
    def serving(more):
        def program():
            torch.manual_seed(0)
            model = torch.compile(nn.Linear(2, 2), backend="eager")
            ask = torch.compile(lambda x: {"logits": model(x) + more, "ids": (x > 0, [x])}, backend="eager")
            for i in range(4):
                ask(torch.full((1, 2), float(i)))["logits"].detach().zero_()

        return program

    a, b = kept("a", serving(0.0)), kept("b", serving(math.nan))
    assert list(values.load(a)[0]["outputs"])[:2] == ["step 1['logits']", "step 1['ids'][1][0]"]
    assert values.apart(a, a).kinds["outputs"].equal
    found = values.apart(a, b).kinds["outputs"]
    assert found.absolute == math.inf and found.where == "step 1['logits'], rank 0" and not found.close
    assert values.apart(b, b).kinds["outputs"].equal, "the same NaN"


def test_numbers_of_every_kind(tmp_path):
    def of(tensor):
        return values.compare(tensor, tensor.clone().fill_(1), None, "here")

    float8 = torch.float8_e4m3fn
    for dtype in (float8, torch.bfloat16, torch.float64, torch.int8, torch.complex64, torch.bool):
        one = of(torch.zeros(3, dtype=dtype))
        assert (one.absolute, one.equal, one.close) == (1.0, False, False), dtype
    zero = torch.zeros(2)
    assert not values.compare(zero, -zero, None, "").equal and values.compare(zero, -zero, None, "").close
    assert of(torch.full((2,), math.inf)).absolute == math.inf
    a, b = (torch.tensor([math.nan, one]) for one in (1.0, 2.0))
    assert values.compare(a, b, None, "").absolute == 1.0, "the NaN of both is no difference"
    assert values.compare(zero.new_zeros(0), zero.new_zeros(0), None, "").equal


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    path = tmp_path / "values-0.pt"
    numbers = {kind: {"a": 1} for kind in values.KINDS}
    for body in (b"", b"nothing", {"losses": {}}, numbers, [nn.Linear(1, 1)]):
        path.write_bytes(body) if isinstance(body, bytes) else torch.save(body, path)
        with pytest.raises(ValueError, match="values-0.pt holds no values of a rank"):
            values.load(tmp_path)
