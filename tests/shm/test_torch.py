"""shm under what torch builds on a process group: subgroups, handles, messages, compilation, profiler, DDP."""

from __future__ import annotations

import pytest

import labkit


@pytest.fixture(scope="module")
def four():
    with labkit.Ranks(4, device="cpu", backend="shm", timeout=60, quiet=True) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="shm", timeout=120, quiet=True) as ranks:
        yield ranks


def test_it_is_what_c10d_takes_it_for(shm_ranks):
    def look():
        import torch.distributed as dist

        from labkit import shm

        shm.register()  # once more
        group = dist.group.WORLD
        return (
            dist.get_backend(),
            type(group).__name__,
            group.name(),
            group.group_name,
            dist.get_world_size(group),
        )

    assert shm_ranks.run(look).same()[:3] == ("shm", "ShmProcessGroup", "shm")


def test_groups_within_the_world_and_meshes(four):
    def work():
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        rank = dist.get_rank()
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        x = torch.tensor([rank])
        dist.all_reduce(x, group=pairs[rank % 2])
        dist.broadcast(y := torch.tensor([rank]), src=3 if rank % 2 else 2, group=pairs[rank % 2])
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        z = torch.tensor([rank])
        dist.all_reduce(z, group=mesh["tensor"].get_group())
        return x.item(), y.item(), z.item()

    assert list(four.run(work).values()) == [(2, 2, 1), (4, 3, 1), (2, 2, 5), (4, 3, 5)]


def test_handles_of_calls_that_do_not_wait(shm_ranks):
    def work():
        import torch
        import torch.distributed as dist

        x = torch.ones(3)
        handle = dist.all_reduce(x, async_op=True)
        doubled = handle.get_future().then(lambda f: [t * 2 for t in f.value()]).wait()
        return handle.wait(), handle.is_completed(), x.tolist(), doubled[0].tolist()

    assert shm_ranks.run(work).same() == (True, True, [2.0] * 3, [4.0] * 3)


def test_messages_and_objects(four):
    def work():
        import torch
        import torch.distributed as dist

        rank = dist.get_rank()
        if rank == 1:  # two of four: the others need not know
            dist.send(torch.arange(3), 2, tag=7)
        if rank == 2:
            dist.recv(x := torch.zeros(3, dtype=torch.int64), 1, tag=7)
            assert x.tolist() == [0, 1, 2]
        dist.barrier()
        ring = torch.zeros(1)
        ops = [
            dist.P2POp(dist.isend, torch.tensor([float(rank)]), (rank + 1) % 4),
            dist.P2POp(dist.irecv, ring, (rank - 1) % 4),
        ]
        for handle in dist.batch_isend_irecv(ops):
            handle.wait()
        if rank:
            dist.send(torch.tensor([rank]), 0)
            any_source = []
        else:
            heard = [torch.zeros(1, dtype=torch.int64) for _ in range(3)]
            any_source = sorted((dist.recv(t), t.item()) for t in heard)
        everyone = [None] * 4
        dist.all_gather_object(everyone, {"rank": rank})
        told = ["from two" if rank == 2 else None]
        dist.broadcast_object_list(told, src=2)
        return ring.item(), any_source, [e["rank"] for e in everyone], told

    found = four.run(work)
    assert [ring for ring, *_ in found.values()] == [3, 0, 1, 2]
    assert found[0][1] == [(1, 1), (2, 2), (3, 3)]
    assert all(
        rest == ([0, 1, 2, 3], ["from two"]) for _, _, *rest in found.values() for rest in [tuple(rest)]
    )


@pytest.mark.slow
@pytest.mark.parametrize("group", ["shm_ranks", "three"])
def test_a_compiled_model_with_collectives_gives_the_gradients_of_an_eager_one(request, group):
    def work():
        import torch
        import torch.distributed as dist
        import torch.distributed._functional_collectives as funcol

        rank, n, world = dist.get_rank(), dist.get_world_size(), dist.group.WORLD

        class Summed(
            torch.autograd.Function
        ):  # each rank's part of a product; backward, all ranks have the gradient
            @staticmethod
            def forward(ctx, x):
                return funcol.all_reduce(x, "sum", world)

            @staticmethod
            def backward(ctx, grad):
                return grad

        torch.manual_seed(0)
        full = [torch.randn(8, 6 * n), torch.randn(6 * n, 4)]
        x = torch.randn(5, 8)

        def parts():
            mine = slice(6 * rank, 6 * (rank + 1))
            return [t.clone().requires_grad_() for t in (full[0][:, mine], full[1][mine])]

        def model(x, a, b):
            return Summed.apply(torch.relu(x @ a) @ b).square().sum()

        whole = [t.clone().requires_grad_() for t in full]
        (torch.relu(x @ whole[0]) @ whole[1]).square().sum().backward()
        mine = slice(6 * rank, 6 * (rank + 1))
        wanted = [whole[0].grad[:, mine], whole[1].grad[mine]]
        found = []
        for run in (model, torch.compile(model, fullgraph=True)):
            for _ in range(2):
                a, b = parts()
                run(x, a, b).backward()
                found.append(
                    [torch.allclose(g, w, rtol=1e-4) for g, w in zip((a.grad, b.grad), wanted, strict=True)]
                )
        return found

    assert request.getfixturevalue(group).run(work).same() == [[True, True]] * 4


@pytest.mark.slow
def test_compiled_collectives_give_what_eager_ones_give(shm_ranks):
    def work():
        import torch
        import torch.distributed as dist
        import torch.distributed._functional_collectives as funcol

        world = dist.group.WORLD

        def functional(x):
            a = funcol.all_reduce(x * 2, "sum", world)
            b = funcol.all_gather_tensor(a + 1, 0, world)
            c = funcol.reduce_scatter_tensor(b, "avg", 0, world)
            d = funcol.all_to_all_single(c, None, None, world)
            e = funcol.all_reduce_coalesced([d, d + 1], "max", world)
            f = funcol.all_gather_into_tensor_coalesced(e, world)
            return f[0] + funcol.broadcast(f[1], 1, world)

        def in_place(x):
            y = x + 1
            dist.all_reduce(y)
            return y * 2

        x = torch.arange(8.0).view(4, 2) + dist.get_rank()
        return [
            torch.equal(torch.as_tensor(f(x)), torch.compile(f, fullgraph=True)(x))
            for f in (functional, in_place)
        ]

    assert shm_ranks.run(work).same() == [True, True]


def test_dynamo_runs_the_backend_and_never_compiles_it(shm_ranks):
    def work():
        import torch
        import torch.distributed as dist
        from torch._dynamo import convert_frame

        def looped(x):
            for _ in range(2):
                torch._dynamo.graph_break()  # in a loop: Dynamo gives this frame up and tries what it calls
                dist.all_reduce(x)
                dist.all_gather([torch.zeros(2) for _ in range(2)], x)
            return x

        torch._dynamo.reset()
        before = convert_frame.FRAME_COUNTER
        total = torch.compile(looped, backend="eager")(torch.ones(2))
        return total.tolist(), convert_frame.FRAME_COUNTER - before

    assert shm_ranks.run(work).same() == ([4.0, 4.0], 1)  # the one frame is `looped`


def test_the_profiler_shows_each_collective_on_the_thread_that_waits(shm_ranks):
    def work():
        import torch
        import torch.distributed as dist

        from labkit import torch_compat

        torch_compat.quiet_profiler()
        x = torch.ones(4)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(x)
            dist.broadcast(x, 0)
            dist.all_to_all_single(torch.zeros(4), x)
            dist.barrier()
        return [event.name for event in profile.events() if event.name.startswith("shm:")]

    names = ["shm:all_reduce", "shm:broadcast", "shm:all_to_all_single", "shm:barrier"]
    assert shm_ranks.run(work).same() == names


def test_autograd_sees_as_little_of_a_collective_as_with_gloo(shm_ranks):
    def work():
        import torch
        import torch.distributed as dist

        def grads(group):
            leaf = torch.ones(3, requires_grad=True)
            dist.all_reduce(leaf, group=group)
            y = (leaf * 1).exp()  # exp keeps its result for backward, and the all_reduce changes it unseen
            dist.all_reduce(y, group=group)
            y.sum().backward()
            return leaf.tolist(), leaf.grad.tolist(), y._version

        return grads(dist.group.WORLD), grads(dist.new_group(backend="gloo"))

    shm, gloo = shm_ranks.run(work).same()
    assert shm == gloo


def test_inference_fake_and_unwaited_tensors(shm_ranks):
    def work():
        import torch
        import torch.distributed as dist
        import torch.distributed._functional_collectives as funcol
        from torch._subclasses.fake_tensor import FakeTensorMode

        with torch.inference_mode():
            x = torch.ones(2)
            inside = dist.new_group()
            dist.all_reduce(z := torch.ones(3), group=inside)
            dist.all_reduce(x)  # the first of this shape: what it caches must serve outside too
        dist.all_reduce(x)
        dist.all_reduce(y := torch.ones(2))
        dist.all_reduce(z, group=inside)
        dist.all_reduce(torch.ones(4), group=inside)
        with FakeTensorMode():
            dist.all_reduce(torch.ones(2))  # torch only looks: nothing may reach a peer
        dist.all_reduce(lazy := funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD))
        return x.tolist(), y.tolist(), z.tolist(), lazy.tolist()

    assert shm_ranks.run(work).same() == ([4.0, 4.0], [2.0, 2.0], [4.0, 4.0, 4.0], [4.0, 4.0])


def test_ddp_fsdp_and_dtensor_train_on_it(shm_ranks):
    def work():
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard, distribute_tensor

        rank = dist.get_rank()
        torch.manual_seed(rank)  # DDP spreads rank 0's weights
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
        model(torch.full((3, 4), rank + 1.0)).sum().backward()
        torch.manual_seed(0)
        sharded = fully_shard(torch.nn.Linear(4, 2, bias=False))
        sharded(torch.full((3, 4), rank + 1.0)).sum().backward()
        spread = distribute_tensor(torch.arange(6.0), init_device_mesh("cpu", (2,)), [Shard(0)])
        return (
            model.module.weight.grad.unique().tolist(),
            sharded.weight.grad.full_tensor().unique().tolist(),
            spread.sum().full_tensor().item(),
        )

    assert shm_ranks.run(work).same() == ([4.5], [4.5], 15.0)


def test_one_store_carries_one_group_after_another():
    import datetime

    import torch
    import torch.distributed as dist

    from labkit.shm import ShmProcessGroup

    store = dist.HashStore()
    for _ in range(3):
        group = ShmProcessGroup(store, 0, 1, datetime.timedelta(seconds=5))
        x = torch.arange(4.0)
        group.allreduce([x]).wait()
        assert x.tolist() == [0, 1, 2, 3]
        group.shutdown()
        with pytest.raises(RuntimeError, match="it closed the group"):
            group.barrier()


def test_no_rank_has_joined_before_the_way_to_the_memory_is_closed():
    import datetime
    import threading
    import time

    import torch.distributed as dist

    from labkit.shm import ShmProcessGroup, segment

    class Slow(dist.HashStore):
        def delete_key(self, key):
            time.sleep(0.2)
            return super().delete_key(key)

    store, found = Slow(), {}

    def join(rank):
        group = ShmProcessGroup(store, rank, 2, datetime.timedelta(seconds=30))
        found[rank] = store.check([segment.TICKET])  # what the next group of this name would come upon
        group.shutdown()

    ranks = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(60)
    assert found == {0: False, 1: False}
