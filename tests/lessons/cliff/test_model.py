"""Shards, sizes and seeds of the model under study, in one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course.cliff import program as tp

SMALL = tp.Config(dim=64, heads=4, tokens=4, blocks=2)


def test_uneven_shares_are_refused():
    for world_size in (0, 3, 8):
        with pytest.raises(ValueError, match=f"heads=4 cannot be split evenly over world_size={world_size}"):
            tp.Model(SMALL, world_size)
    with pytest.raises(ValueError, match="outputs=5 cannot be split evenly over world_size=2"):
        tp.ColumnParallelLinear(4, 5, world_size=2)
    with pytest.raises(ValueError, match="inputs=5 cannot be split evenly over world_size=2"):
        tp.RowParallelLinear(5, 4, world_size=2)
    with pytest.raises(ValueError, match="dim=5 cannot be split evenly over world_size=2"):
        tp.RMSNorm(5, world_size=2)


def test_the_same_seed_gives_the_same_model_and_input():
    x = SMALL.sample()
    assert x.shape == (1, 4, 64) and x.equal(SMALL.sample())
    assert tp.full(SMALL)(x).equal(tp.full(SMALL)(x))
    other = tp.Config(dim=64, heads=4, tokens=4, blocks=2, seed=1)
    assert not tp.full(other)(x).allclose(tp.full(SMALL)(x))


def test_one_rank_alone_needs_no_group_and_calls_no_reduce():
    def never(x):
        raise AssertionError("reduce was called")

    assert not dist.is_initialized()
    model = tp.Model(SMALL, reduce=never)
    y = model(SMALL.sample(batch=3))
    assert y.shape == (3, 4, 64) and y.isfinite().all() and not y.requires_grad


@pytest.mark.parametrize("world_size", [2, 4])
def test_shards_put_together_are_the_full_model(world_size):
    whole = tp.full(SMALL)
    shards = [tp.Model(SMALL, world_size, rank) for rank in range(world_size)]
    for name, weight in whole.named_parameters():
        parts = [shard.get_parameter(name) for shard in shards]
        if ".qkv." in name:
            together = torch.cat([torch.cat([p.chunk(3)[i] for p in parts]) for i in range(3)])
        elif "norm1" in name or "norm2" in name:
            assert all(p.equal(weight) for p in parts)
            continue
        else:
            together = torch.cat(parts, dim=1 if ".out." in name or ".down." in name else 0)
        assert together.equal(weight), name


def test_a_shard_follows_the_full_models_weights():
    whole = tp.full(SMALL)
    with torch.no_grad():
        whole.blocks[1].up.weight.fill_(7)
    part = tp.shard(whole, rank=1, world_size=2)
    assert (part.blocks[1].up.weight == 7).all()
    assert part.blocks[0].up.weight.equal(tp.Model(SMALL, 2, 1).blocks[0].up.weight)
    part.blocks[0].up.weight.zero_()
    assert whole.blocks[0].up.weight.abs().sum() > 0  # a copy, not a view


def test_only_a_full_model_is_cut():
    with pytest.raises(ValueError, match="cut shards from the full model"):
        tp.shard(tp.Model(SMALL, 2, 0), rank=0, world_size=2)


def test_deep_models_keep_their_scale():
    y = tp.full(tp.Config(dim=64, heads=2, tokens=4, blocks=40))(SMALL.sample())
    assert 0.5 < y.std() < 3
