"""Why parameters drift apart, with its proof: DDP that is not called, no_sync, and copies that nothing keeps equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from oddrank.look import replicas, summary
from oddrank.look.function import look

LINES = Path(__file__).read_text().splitlines()


def train(steps: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch._dynamo.reset()
    rank = dist.get_rank()
    torch.manual_seed(5)
    parts = nn.ModuleDict({name: DDP(nn.Linear(8, 3)) for name in ("early", "late", "hooked", "written")})
    # in one group, all-reduces of one DDP are not told from those of another
    parts["warm"] = DDP(nn.Linear(8, 3), process_group=dist.new_group())
    parts["bypassed"] = DDP(nn.Linear(8, 3))  # THE WRAPPER
    parts["hooked"].register_comm_hook(None, fp16_compress_hook)
    plain = nn.ModuleDict(
        {name: nn.Linear(8, 3) for name in ("averaged", "copy", "zeros", "shard", "columns")}
    )
    with torch.no_grad():
        plain["zeros"].weight.zero_()
        plain["shard"].weight += rank
        plain["shard"].bias += rank
        plain["columns"].weight += rank
        plain["zeros"].bias.zero_()
    lost = nn.Sequential(nn.Linear(8, 3))
    lost.load_state_dict({"_orig_mod.0.weight": torch.ones(3, 8)}, strict=False)  # THE LOAD
    first = torch.compile(parts["early"], backend="eager")
    optimizer = torch.optim.SGD([*parts.parameters(), *plain.parameters()], lr=0.1)
    torch.manual_seed(rank)
    for step in range(steps):
        x = torch.randn(16, 8)
        with parts["early"].no_sync():
            first(x).square().mean().backward()
        first(x).square().mean().backward()
        parts["late"](x).square().mean().backward()
        parts["hooked"](x).square().mean().backward()
        parts["written"](x).square().mean().backward()
        (parts["warm"].module if step else parts["warm"])(x).square().mean().backward()
        parts["bypassed"].module(x).square().mean().backward()
        sum(part(x).sub(1).square().mean() for part in plain.values()).backward()
        for parameter in plain["averaged"].parameters():
            dist.all_reduce(parameter.grad)
        with parts["late"].no_sync():  # THE WRONG PLACE
            parts["late"](x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            parts["written"].module.weight += rank


@pytest.fixture(scope="module")
def found(ranks):
    return look(ranks, train, 6)


def line(mark: str) -> str:
    return f"(test_drift.py:{next(n for n, text in enumerate(LINES, 1) if text.endswith('# ' + mark))})"


def test_a_drift_under_ddp_has_its_reason_where_torch_proves_one(found):
    held = found.held["replicas"]
    apart = replicas.differing(held)
    names = set(apart[apart["kind"] == "parameters under DDP"]["name"].str.partition(".")[0])
    assert names == {"late", "written", "warm", "bypassed"}
    why = held[held["why"] != ""].groupby(held["name"].str.partition(".")[0])["why"].unique()
    assert set(why.index) >= {"late", "warm", "bypassed"} and not {"early", "hooked", "written"} & set(
        why.index
    )
    assert f"DDP {line('THE WRAPPER')} was never called" in why["bypassed"][0]
    assert f"ran under no_sync {line('THE WRONG PLACE')}" in why["late"][0]
    assert "averaged no gradient in the recorded steps" in why["warm"][0]
    # of `written` nothing is proved, so the general question is asked as well
    said = replicas.compared(held)["parameters under DDP"]
    assert all(reason in said for reasons in why[["late", "warm", "bypassed"]] for reason in reasons)
    assert replicas.KINDS["parameters under DDP"] in said
    # what ranks hold stands first and once
    text = summary.text(found)
    lines = [row for row in text.splitlines() if re.match(r"\d\. ", row)]
    assert lines[0].startswith("1. ranks differ:") and text.count("ranks differ") == 1
    at = line("THE LOAD")[1:-1]
    assert lines[1].startswith(f"2. {at}: load_state_dict of Sequential loaded 0 of 1 keys")


def test_a_copy_that_drifts_is_found_and_a_shard_is_not(found):
    held = found.held["replicas"]
    apart = replicas.differing(held)
    assert sorted(apart[apart["kind"] == replicas.STARTED]["name"]) == [
        "columns.bias",
        "copy.bias",
        "copy.weight",
    ]
    said = replicas.compared(held)
    assert said[replicas.STARTED].startswith(f"3 of 7 {replicas.STARTED} differ")
    assert "; columns.bias may be shards, as other parameters of their modules are;" in said[replicas.STARTED]
    assert re.search(r"began as a constant, zeros\.\w+, zeros\.\w+ differ", said[replicas.STARTED])
    assert replicas.STARTED in "".join(found.unequal())
    assert replicas.left_out(held) == [f"5 {replicas.OTHER} were not compared"]  # zeros, shard, columns


def stages(kind: str) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    torch._dynamo.reset()
    torch.manual_seed(5)
    own, rank = nn.Linear(4, 4), dist.get_rank()
    model, optimizer = torch.compile(own, backend="eager"), torch.optim.SGD(own.parameters(), lr=0.1)
    for _ in range(6):
        out = model(torch.ones(2, 4) * (rank + 1))
        if kind == "experts":
            dist.all_to_all_single(torch.empty_like(out), out.detach())
        elif rank:
            dist.recv(torch.empty(2, 4), 0)
        else:
            dist.send(out.detach(), 1)
        out.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["experts", "messages"])
def test_what_a_rank_holds_for_itself_may_drift_though_it_began_equal(ranks, kind):
    found = look(ranks, stages, kind)
    said = replicas.compared(found.held["replicas"], exchanges=True)[replicas.STARTED]
    assert said.startswith("2 of 2") and replicas.PARTS in said and found.unequal() == []


def crash(kind: str) -> list[str]:
    import gc

    import torch
    from oddrank.look.parameter_names import name_parameters
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel as DDP

    net = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("frozen", "a", "tied", "b", "spare")})
    net["tied"].weight = net["a"].weight
    gc.disable()  # DDP is a cycle: what an earlier call left is there until somebody looks
    try:
        if kind == "unused":
            net["frozen"].requires_grad_(False)
            net.forward = lambda x: net["b"](net["tied"](net["a"](net["frozen"](x))))
            model = DDP(net)
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
        elif kind == "mixed":
            parallelize_module(net["b"], init_device_mesh("cpu", (2,)), ColwiseParallel())
            net["b"](net["a"](torch.ones(2, 4))).sum().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        else:
            raise ValueError("indices which did not receive grad for rank 0: 1")
    except (RuntimeError, ValueError) as error:
        name_parameters(error)
        return getattr(error, "__notes__", [])
    finally:
        gc.enable()
    return ["it did not fail"]


def test_an_error_about_parameters_names_them(ranks):
    for note in ranks.run(crash, "unused").values():
        assert note == [
            "the parameters without a gradient are spare.weight, spare.bias: does the forward of this step use them?"
        ]
    for (note,) in ranks.run(crash, "mixed").values():
        assert note.startswith("plain parameters: a.weight, a.bias; DTensors: b.weight, b.bias.")
    assert list(ranks.run(crash, "another").values()) == [[], []]
