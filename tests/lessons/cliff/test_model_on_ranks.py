"""Every variant on two ranks against the unsharded model: the same numbers, four collectives a block."""

from __future__ import annotations

import pytest
import torch

import labkit
from course.cliff import program as tp

pytestmark = pytest.mark.slow

SMALL = tp.Config(dim=64, heads=2, tokens=4, blocks=2)
# float32, added up in another order: the outputs are of order one
RTOL, ATOL = 1e-4, 1e-5


def same(outputs, config=SMALL):
    expected = tp.full(config)(config.sample())
    for y in outputs.values():
        torch.testing.assert_close(y, expected, rtol=RTOL, atol=ATOL)


def forward(config, reduce, backend=None, fullgraph=False):
    import torch.distributed as dist

    model = tp.shard(tp.full(config), dist.get_rank(), dist.get_world_size(), getattr(tp, reduce))
    x = config.sample()
    if backend:
        torch.compiler.reset()
        model = torch.compile(model, backend=backend, fullgraph=fullgraph)
    first, second = model(x).clone(), model(x).clone()
    assert first.equal(second), "a forward changed what the next one started from"
    assert x.equal(config.sample()), "the input was changed"
    return second


@pytest.mark.parametrize("reduce", ["inplace", "disabled", "functional", "gated"])
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_every_variant_agrees_with_the_unsharded_model(ranks, reduce, backend):
    same(ranks.run(forward, SMALL, reduce, backend))


@pytest.mark.slow
@pytest.mark.parametrize("reduce", ["inplace", "disabled", "functional", "gated"])
def test_every_variant_agrees_under_inductor(ranks, reduce):
    same(ranks.run(forward, SMALL, reduce, "inductor"))


@pytest.mark.parametrize("reduce", ["inplace", "functional", "gated"])
def test_these_variants_stand_in_one_graph(ranks, reduce):
    same(ranks.run(forward, SMALL, reduce, "aot_eager", fullgraph=True))


def test_the_disabled_variant_cannot(ranks):
    def refused(config):
        try:
            forward(config, "disabled", "aot_eager", fullgraph=True)
        except RuntimeError as error:
            return str(error)

    for message in ranks.run(refused, SMALL).values():
        assert "the collective is hidden from the compiler" in message


def test_four_collectives_a_block_in_the_documented_order(ranks):
    def count(config):
        import torch.distributed as dist
        from torch.distributed.tensor.debug import CommDebugMode

        shapes = []

        def watched(x):
            shapes.append(tuple(x.shape))
            return tp.inplace(x)

        model = tp.shard(tp.full(config), dist.get_rank(), dist.get_world_size(), watched)
        with CommDebugMode() as seen:
            model(config.sample())
        return shapes, seen.get_total_counts()

    statistic, output = (1, SMALL.tokens, 1), (1, SMALL.tokens, SMALL.dim)
    for shapes, total in ranks.run(count, SMALL).values():
        assert shapes == [statistic, statistic, output, output] * SMALL.blocks
        assert total == 8


def gradients(config, ways):
    """On a rank: the largest error of the input's gradient, where the loss is the sum of the ranks' shares."""
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    whole, found = tp.full(config).requires_grad_(), {}
    x = config.sample().requires_grad_()
    whole(x).square().sum().backward()
    right = x.grad
    for reduce, compiled in ways:
        torch.compiler.reset()
        model = tp.shard(whole, rank, size, getattr(tp, reduce)).requires_grad_()
        x = config.sample().requires_grad_()
        y = (torch.compile(model, backend="aot_eager") if compiled else model)(x)
        (y.square().sum() / size).backward()
        dist.all_reduce(x.grad)  # each rank has a part of it
        found[reduce, compiled] = ((x.grad - right).abs().max() / right.abs().max()).item()
    return found


@pytest.mark.parametrize(
    ("size", "config"), [(2, SMALL), (3, tp.Config(dim=96, heads=6, tokens=5, blocks=1))]
)
def test_gradients_are_one_processs_but_for_an_in_place_call_that_runs_in_eager(size, config):
    """Lesson 04, section 1: the three give the same numbers in forward only."""
    ways = [
        (reduce, compiled) for reduce in ("inplace", "disabled", "functional") for compiled in (False, True)
    ]
    with labkit.Ranks(size, device="cpu", backend="gloo", timeout=300, quiet=True) as some:
        for errors in some.run(gradients, config, ways).values():
            wrong = {way for way, error in errors.items() if error > 1e-2}
            assert wrong == {("inplace", False), ("disabled", False), ("disabled", True)}, errors
            assert all(error < 1e-4 for way, error in errors.items() if way not in wrong), errors


def test_an_in_place_reduce_only_gets_tensors_that_the_layer_owns(ranks):
    def foreign(config):
        import torch.distributed as dist

        shared = []

        def watched(given):
            if any(given.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in theirs):
                shared.append(tuple(given.shape))
            return tp.inplace(given)

        model = tp.shard(tp.full(config), dist.get_rank(), dist.get_world_size(), watched)
        theirs = list(model.parameters())  # kept alive, so that no storage is used twice
        # what a block gives its layers must not change under it either
        for module in model.modules():
            module.register_forward_pre_hook(lambda _, args: theirs.extend(args))
        model(config.sample())
        return len(theirs), shared

    for watched, shared in ranks.run(foreign, SMALL).values():
        assert watched > 20 and shared == []


def test_eager_results_of_the_variants(ranks):
    def reduced():
        import torch.distributed as dist

        mine = float(dist.get_rank() + 1)
        found = {}
        for name in ("inplace", "disabled", "functional", "gated"):
            x = torch.full((2,), mine)
            y = getattr(tp, name)(x)
            found[name] = (y.tolist(), x.tolist(), y is x)
        return found

    for rank, found in enumerate(ranks.run(reduced).values()):
        kept = [rank + 1.0] * 2
        assert found.pop("functional") == ([3.0, 3.0], kept, False)
        assert all(result == ([3.0, 3.0], [3.0, 3.0], True) for result in found.values()) and len(found) == 3


@pytest.mark.parametrize("reduce", ["inplace", "functional", "gated"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_group_of_its_own_is_used(ranks, reduce, compiled):
    def alone(config, reduce):
        import torch.distributed as dist

        groups = [dist.new_group([0]), dist.new_group([1])]
        rank = dist.get_rank()
        model = tp.shard(tp.full(config), rank, 2, getattr(tp, reduce), groups[rank])
        if compiled:
            torch.compiler.reset()
            model = torch.compile(model, backend="aot_eager", fullgraph=True)
        return model(config.sample()).clone()

    # each rank adds up with nobody, so the two keep different partial sums
    one, two = ranks.run(alone, SMALL, reduce).values()
    assert not one.allclose(two)


def test_a_readers_own_reduce_of_one_argument_will_do(ranks):
    def own(config):
        import torch.distributed as dist

        def all_reduce(x):
            dist.all_reduce(x)
            return x

        return tp.Model(config, 2, dist.get_rank(), all_reduce)(config.sample())

    same(ranks.run(own, SMALL))


def test_half_precision_keeps_its_type(ranks):
    def half(config):
        import torch.distributed as dist

        model = tp.Model(config, 2, dist.get_rank(), tp.inplace).bfloat16()
        return model(config.sample(dtype=torch.bfloat16))

    for y in ranks.run(half, SMALL).values():
        assert y.dtype == torch.bfloat16
        expected = tp.full(SMALL)(SMALL.sample())
        torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.1)
