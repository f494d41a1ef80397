"""The model of lesson 04 on ranks, at other sizes than the lesson's: one process's numbers, and its gradients."""

from __future__ import annotations

import pytest
import torch

from course.cliff import program as tp

pytestmark = pytest.mark.slow

SMALL = tp.Config(dim=48, heads=6, blocks=2, tokens=5)
# float32, added up in another order: the outputs are of order one
RTOL, ATOL = 1e-4, 1e-5


def same(outputs, **tolerance):
    expected = tp.full(SMALL)(SMALL.sample())
    for y in outputs.values():
        torch.testing.assert_close(y.float(), expected, **(tolerance or {"rtol": RTOL, "atol": ATOL}))


def forward(reduce, how):
    import torch.distributed as dist

    torch.compiler.reset()
    model = tp.shard(tp.full(SMALL), dist.get_rank(), dist.get_world_size(), getattr(tp, reduce))
    x = SMALL.sample()
    if how == "blocks":
        for block in model.blocks:
            block.compile(backend="aot_eager")
    elif how != "eager":
        model = torch.compile(model, backend="aot_eager", fullgraph=how == "one graph")
    with torch._dynamo.config.patch(nested_graph_breaks=how == "nested"):
        first, second = model(x).clone(), model(x).clone()
    assert first.equal(second), "a forward changed what the next one started from"
    assert x.equal(SMALL.sample()), "the input was changed"
    return second


WAYS = [(reduce, how) for reduce in ("inplace", "functional") for how in ("eager", "one graph")]
WAYS += [("disabled", how) for how in ("eager", "blocks", "nested")] + [("functional", "blocks")]


@pytest.mark.parametrize(("reduce", "how"), WAYS)
def test_every_way_to_compile_computes_what_one_process_does(three, reduce, how):
    same(three.run(forward, reduce, how))


def gradients(ways):
    """On a rank: the largest error of the input's gradient, where the loss is the sum of the ranks' shares."""
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    whole, found = tp.full(SMALL).requires_grad_(), {}
    x = SMALL.sample().requires_grad_()
    whole(x).square().sum().backward()
    right = x.grad
    for reduce, compiled in ways:
        torch.compiler.reset()
        model = tp.shard(whole, rank, size, getattr(tp, reduce)).requires_grad_()
        x = SMALL.sample().requires_grad_()
        y = (torch.compile(model, backend="aot_eager") if compiled else model)(x)
        (y.square().sum() / size).backward()
        dist.all_reduce(x.grad)  # each rank has a part of it
        found[reduce, compiled] = ((x.grad - right).abs().max() / right.abs().max()).item()
    return found


def test_gradients_are_one_processs_but_for_an_in_place_call_that_runs_in_eager(three):
    """Lesson 04, section 1: the three give the same numbers in forward only."""
    ways = [
        (reduce, compiled) for reduce in ("inplace", "disabled", "functional") for compiled in (False, True)
    ]
    for errors in three.run(gradients, ways).values():
        wrong = {way for way, error in errors.items() if error > 1e-2}
        assert wrong == {("inplace", False), ("disabled", False), ("disabled", True)}, errors
        assert all(error < 1e-4 for way, error in errors.items() if way not in wrong), errors


def reduced():
    import torch.distributed as dist

    mine = float(dist.get_rank() + 1)
    found = {}
    for name in ("inplace", "disabled", "functional"):
        x = torch.full((2,), mine)
        y = getattr(tp, name)(x)
        found[name] = (y.tolist(), x.tolist(), y is x)
    return found


def test_in_eager_only_the_functional_form_leaves_its_argument_alone(ranks):
    for rank, found in enumerate(ranks.run(reduced).values()):
        kept = [rank + 1.0] * 2
        assert found.pop("functional") == ([3.0, 3.0], kept, False)
        assert all(result == ([3.0, 3.0], [3.0, 3.0], True) for result in found.values()) and len(found) == 2


def alone(ways):
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    group = [dist.new_group([0]), dist.new_group([1])][rank]
    for reduce, compiled in ways:
        torch.compiler.reset()
        model = tp.shard(tp.full(SMALL), rank, 2, getattr(tp, reduce), group)
        found.append(
            (torch.compile(model, backend="aot_eager") if compiled else model)(SMALL.sample()).clone()
        )
    return found


def test_a_group_of_its_own_is_used(ranks):
    # each rank adds up with nobody, so the two keep different partial sums
    ways = [("inplace", False), ("functional", False), ("functional", True)]
    for one, two in zip(*ranks.run(alone, ways).values(), strict=True):
        assert not one.allclose(two)


def half():
    """A reader's own reduce has one argument."""
    import torch.distributed as dist

    def all_reduce(x):
        dist.all_reduce(x)
        return x

    model = tp.Model(SMALL, dist.get_world_size(), dist.get_rank(), all_reduce).bfloat16()
    y = model(SMALL.sample(dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    return y


def test_half_precision_keeps_its_type_and_a_reduce_of_one_argument_will_do(ranks):
    same(ranks.run(half), rtol=0.05, atol=0.1)


def with_an_entry(reduce, compiles):
    """An MLP in Megatron's pattern, the same loss on every rank: its gradient over the right one, and warnings."""
    import warnings

    import torch.distributed as dist
    import torch.nn.functional as F

    class Entry(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            grad = grad.clone()
            dist.all_reduce(grad)
            return grad

    torch.compiler.reset()
    torch.manual_seed(0)
    up, down, x = torch.randn(12, 4), torch.randn(4, 12), torch.randn(3, 4)
    rank, size = dist.get_rank(), dist.get_world_size()

    def whole(x):
        return F.linear(F.gelu(F.linear(x, up)), down)

    def mine(x):
        hidden = F.gelu(F.linear(Entry.apply(x), up.chunk(size)[rank]))
        return getattr(tp, reduce)(F.linear(hidden, down.chunk(size, 1)[rank]))

    grads, said = [], []
    for fn in (whole, torch.compile(mine, backend="aot_eager") if compiles else mine):
        given = x.clone().requires_grad_()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fn(given).square().sum().backward()
        grads.append(given.grad)
        said = [
            str(one.message) for one in caught if "autograd kernel was not registered" in str(one.message)
        ]
    return (grads[1] / grads[0]).median().item(), len(said)


def test_compiling_a_plain_call_spoils_a_gradient_that_the_layers_entry_adds_up(three):
    for reduce, compiles, ratio in (("inplace", False, 1), ("disabled", True, 1), ("inplace", True, 3)):
        for found, warned in three.run(with_an_entry, reduce, compiles).values():
            assert found == pytest.approx(ratio, rel=1e-3), reduce
            assert bool(warned) == (ratio == 1)  # a call in eager says that autograd does not know it
