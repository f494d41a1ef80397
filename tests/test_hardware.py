"""Which device and backend is picked, also with GPUs that this machine may not have (nvidia-smi is replaced)."""

from __future__ import annotations

import subprocess

import pytest

from labkit import hardware
from oddrank import machine

THREE = "0, GPU-aa, NVIDIA H200\n1, GPU-bb, NVIDIA H200\n2, GPU-cc, NVIDIA L4\n"


@pytest.fixture
def gpus(monkeypatch):
    def have(listing: str, visible: str | None = None) -> None:
        def run(command, **_):
            if not listing:
                raise FileNotFoundError("nvidia-smi")
            return subprocess.CompletedProcess(command, 0, stdout=listing, stderr="")

        monkeypatch.setattr(machine.subprocess, "run", run)
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        machine._listed.cache_clear()

    monkeypatch.setattr(machine, "torch_version", lambda: "2.13.0")  # one with CUDA
    yield have
    machine._listed.cache_clear()


def test_nccl_where_every_rank_has_a_gpu(gpus):
    gpus(THREE)
    assert (choice := hardware.choose(2)).backend == "nccl" and choice.device == "cuda"
    assert choice.why == "3 GPUs, one a rank"


def test_gloo_moves_cuda_tensors_where_ranks_share_a_gpu(gpus):
    gpus("0, GPU-aa, NVIDIA H200\n")
    choice = hardware.choose(2)
    assert (choice.device, choice.backend) == ("cuda", "gloo") and "shared by all ranks" in choice.why
    choice = hardware.choose(2, backend="nccl")  # not by itself: NCCL calls that a mistake
    assert (choice.device, choice.backend) == ("cuda", "nccl")
    assert choice.why == "backend='nccl' was asked for; one GPU shared by all ranks, over TCP"
    with pytest.raises(ValueError, match="world_size 9 is above what 1 GPU carry"):
        hardware.choose(9, backend="nccl")


def test_gloo_on_cpu_where_there_is_no_gpu(gpus):
    gpus("")
    assert hardware.choose(2) == hardware.Choice("cpu", "gloo", "no GPU here")
    with pytest.raises(ValueError, match="asked for, but there is no GPU here"):
        hardware.choose(2, device="cuda")
    with pytest.raises(ValueError, match="'nccl' needs a GPU, and there is no GPU here"):
        hardware.choose(2, backend="nccl")


def test_a_torch_for_the_cpu_has_no_gpu(gpus, monkeypatch):
    gpus(THREE)
    monkeypatch.setattr(machine, "torch_version", lambda: "2.13.0+cpu")
    assert hardware.choose(2) == hardware.Choice("cpu", "gloo", "no GPU for a torch built for the CPU")
    with pytest.raises(
        ValueError, match="'cuda' was asked for, but there is no GPU for a torch built for the CPU"
    ):
        hardware.choose(2, device="cuda")


def test_what_is_visible_may_change_in_a_process_and_a_mig_part_is_one_gpu(gpus, monkeypatch):
    gpus(THREE)
    assert len(hardware.gpus()) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert len(hardware.gpus()) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-4b3c,MIG-5d6e")
    assert hardware.gpus() == [f"{THREE.splitlines()[0].split(', ')[2]}, a MIG part"]


def test_cuda_visible_devices_is_respected(gpus):
    gpus(THREE, visible="2,0")
    assert hardware.gpus() == ["NVIDIA L4", "NVIDIA H200"]
    gpus(THREE, visible="")
    assert hardware.gpus() == []
    gpus(THREE, visible="GPU-bb,7,0")  # CUDA stops at the first entry that it does not know
    assert hardware.gpus() == ["NVIDIA H200"]


def test_shm_takes_cpu_tensors_also_beside_a_gpu(gpus):
    gpus(THREE)
    assert hardware.choose(2, backend="shm").device == "cpu"
    with pytest.raises(ValueError, match="CPU tensors only"):
        hardware.choose(2, device="cuda", backend="shm")


def test_what_is_described_has_no_path_of_this_machine(gpus):
    gpus("")
    facts = hardware.describe()
    assert facts["torch"] and facts["cores"] >= 1
    assert "/" not in str({k: v for k, v in facts.items() if k != "platform"})
