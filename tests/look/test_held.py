"""What ranks should have alike and do not, though they ran the same: parameters, buffers, tensors of collectives."""

from __future__ import annotations

import pytest
from oddrank.look import replicas, step_collectives, summary
from oddrank.look.function import look

from oddrank import command as cli

SHARDED = "parameters that fully_shard did not shard"


def train(steps: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, distribute_tensor
    from torch.nn.parallel import DistributedDataParallel

    torch._dynamo.reset()
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
    torch.manual_seed(rank)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    fsdp = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(fsdp)
    fsdp[1].late = nn.Parameter(torch.randn(4))
    kept = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    for i, linear in enumerate(kept):
        linear.weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]))
        with torch.no_grad():
            linear.weight.to_local().add_(rank * i)
    model = torch.compile(ddp, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = dist.new_group([0, 1])
    for _ in range(steps):
        model(torch.randn(8, 4)).square().sum().backward()
        dist.all_reduce(torch.ones(2, dtype=torch.float64 if rank else torch.int64), group=group)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():  # after the last recorded step
        ddp.module[0].weight += rank


@pytest.fixture(scope="module")
def found(ranks):
    return look(ranks, train, 7)


def test_what_should_be_alike_is_compared_after_the_last_recorded_step(found):
    said = replicas.compared(found.held["replicas"])
    assert said["parameters under DDP"] == "4 parameters under DDP are equal"
    one = SHARDED.replace("parameters", "parameter")
    assert said[SHARDED].startswith(f"1 of 1 {one} differs: 1.late (nothing reduces their gradients")
    assert said["replicated DTensors"].startswith("1 of 2 replicated DTensors differs: 1.weight")
    assert said["buffers"].startswith("2 of 3 buffers differ: 1.running_mean, 1.running_var")
    (left,) = replicas.left_out(found.held["replicas"])
    assert left.startswith("2 plain parameters")  # the biases of the two layers
    assert [line.split()[5] for line in replicas.wrong(found.held["replicas"])] == ["fully_shard", "differs:"]
    differing = replicas.differing(found.held["replicas"]).set_index("name")
    assert differing.loc["1.late", "norm, rank 0"] != differing.loc["1.late", "norm, rank 1"]


def test_collectives_are_compared_by_what_they_carry(found):
    said = step_collectives.differing(found.held["calls"])
    assert len(said) == 1 and "[2] int64 on rank 0" in said[0] and "[2] float64 on rank 1" in said[0]
    assert "test_held.py" in said[0] and "(group " in said[0]
    # in each of three steps two buckets of buffers and gradients of DDP, and the one by hand
    carried = found.held["calls"].groupby("rank").size()
    assert carried.nunique() == 1 and carried.iloc[0] >= 6
    by_hand = found.held["calls"][found.held["calls"]["tensors"] == "[2] int64"]
    assert len(by_hand) == 3 and set(by_hand["bytes"]) == {16} and (found.held["calls"]["bytes"] > 0).all()
    assert step_collectives.compared(found.held["calls"]).endswith("in 2 groups")
    assert "ranks differ" in summary.text(found) and "float64" in summary.text(found)


def test_verify_compares_before_it_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "uneven.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "shape = (2, 2) if dist.get_rank() else (4,)\n"
        "dist.all_reduce(torch.ones(shape))\n"
    )
    assert cli.main(["look", "--verify", str(script)]) == 3
    said = capsys.readouterr().err
    assert "different collectives (different shape)" in said and "(2, 2) float32 at uneven.py:4" in said


def outside(around: str) -> list[int]:
    """Train a module in whose middle compiled code runs; the collectives of each step in torch's flight record."""
    import torch
    from oddrank.live import introspect
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    torch._dynamo.reset()
    net: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    if around == "DDP":
        net[1].compile(backend="aot_eager")
        net = nn.parallel.DistributedDataParallel(net)
    else:
        fully_shard(net[1])
        net[1].compile(backend="aot_eager")
        fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found: list[int] = []
    for _ in range(5):
        before = len(introspect.collectives() or ())
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(len(introspect.collectives() or ()) - before)
    return found


@pytest.mark.parametrize("around", ["DDP", "fully_shard"])
def test_collectives_before_the_first_compiled_call_belong_to_the_step(ranks, around):
    (count,) = set(ranks.run(outside, around)[0][2:])
    counted = look(ranks, outside, around).counts["collectives"]
    assert count > 2 and list(counted) == [count, count], "buffers, or the parameters of the outermost module"
