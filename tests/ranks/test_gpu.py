"""Ranks on GPUs: NCCL with one each, gloo with CUDA tensors where they share one; no context in the zygote."""

from __future__ import annotations

import re
import subprocess

import pytest

import labkit
from labkit import hardware

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not hardware.gpus(), reason="needs at least one NVIDIA GPU: none is visible here"),
]


def add_up():
    import torch
    import torch.distributed as dist

    from labkit.ranks import here

    x = torch.full((1 << 16,), float(dist.get_rank() + 1), device=here().device)
    dist.all_reduce(x)
    return here().device, float(x.sum())


def compiled_forward():
    import torch
    from oddrank.record import record

    from labkit import lessons
    from labkit.ranks import here

    me = here()
    cliff = lessons.program("cliff")
    config = cliff.Config(dim=64, heads=2, blocks=2, tokens=4)
    whole = cliff.full(config)
    model = torch.compile(cliff.shard(whole, me.rank, me.world_size).to(me.device))
    x = config.sample(device=me.device)
    with torch.no_grad():
        expected = whole(config.sample())
        y = model(x)
        with record() as rec, rec.forward():
            y = model(x)
    return float((y.cpu() - expected).abs().max()), rec.counts.dicts()[0], {one.kind for one in rec.ranges}


def test_what_is_chosen_here_adds_up_on_the_gpu():
    with labkit.Ranks(2) as ranks:
        assert ranks.device == "cuda"
        found = ranks.run(add_up)
    assert {total for _, total in found.values()} == {3.0 * (1 << 16)}
    assert all(device.startswith("cuda:") for device, _ in found.values())


def test_one_rank_over_nccl():
    with labkit.Ranks(1, backend="nccl") as ranks:
        assert ranks.label == "nccl"
        assert ranks.run(add_up)[0][1] == float(1 << 16)


def test_two_ranks_over_nccl_on_one_gpu():
    with labkit.Ranks(2, backend="nccl") as ranks:
        assert ranks.label == ("nccl" if len(hardware.gpus()) > 1 else "nccl · 1 gpu")
        assert [total for _, total in ranks.run(add_up).values()] == [3.0 * (1 << 16)] * 2


def gathered():
    import torch
    import torch.distributed as dist

    from labkit.ranks import here
    from labkit.torch_compat import funcol

    x = torch.arange(2.0, device=here().device) + 10 * dist.get_rank()
    compiled = torch.compile(lambda x: funcol.all_gather_tensor(x + 1, 0, dist.group.WORLD) * 2)
    many = funcol.all_gather_into_tensor_coalesced([x, x + 1], dist.group.WORLD)
    return [
        value.tolist() for value in (funcol.all_gather_tensor(x, 0, dist.group.WORLD), many[1], compiled(x))
    ]


def test_functional_gathers_of_cuda_tensors_over_gloo():
    """In torch alone they end the process (pytorch/pytorch#152645)."""
    with labkit.Ranks(2, device="cuda", backend="gloo") as ranks:
        for found in ranks.run(gathered).values():
            assert found == [[0, 1, 10, 11], [1, 2, 11, 12], [2, 4, 22, 24]]


def test_the_compiled_model_is_right_and_whole_on_the_gpu():
    with labkit.Ranks(2, timeout=300) as ranks:
        for error, counts, kinds in ranks.run(compiled_forward).values():
            assert error < 1e-3
            assert (counts["regions"], counts["breaks"], counts["collectives"]) == (1, 0, 8)
            assert "kernel" in kinds


def test_the_zygote_holds_no_cuda_context():
    with labkit.Ranks(2) as ranks:
        ranks.run(add_up)
        zygote = ranks._pool.spawner.process.pid
        query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        using = set(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split())
        assert str(zygote) not in using
        maps = open(f"/proc/{zygote}/maps").read()
        assert not re.search(
            r"/dev/nvidia(\d|-uvm)", maps
        )  # nvidiactl alone may be: asking NVML is no context


def test_a_parameter_of_a_gpu_arrives_as_one():
    def parts():
        import torch

        from labkit.ranks import here

        weight = torch.nn.Parameter(torch.ones(3, device=here().device), requires_grad=False)
        return weight, torch.ones(2, device=here().device, requires_grad=True)

    with labkit.Ranks(1) as ranks:
        weight, leaf = ranks.run(parts)[0]
    assert type(weight).__name__ == "Parameter" and not weight.requires_grad and leaf.requires_grad


def test_what_fails_on_the_device_fails_in_its_own_call():
    def out_of_range():
        import torch

        from labkit.ranks import here

        torch.zeros(3, device=here().device)[
            torch.tensor([7], device=here().device)
        ]  # asserted in the kernel

    with labkit.Ranks(1) as ranks:
        with pytest.raises(labkit.RankError, match="assert"):
            ranks.run(out_of_range)
        assert ranks.run(add_up)[0][1] == float(1 << 16)  # on a new process, with a context of its own


def test_a_cuda_result_arrives_as_a_cpu_tensor():
    def tensor():
        import torch

        from labkit.ranks import here

        return torch.ones(3, device=here().device)

    with labkit.Ranks(2) as ranks:
        assert {value.device.type for value in ranks.run(tensor).values()} == {"cpu"}
