"""Which GPUs ranks see, what of a GPU can be tried without one: the end of a call, tensors that travel, run labels."""

from __future__ import annotations

import os

import pytest
import torch
from oddrank.record import process

import labkit
from labkit import hardware
from labkit.ranks import wire, worker


def told(name: str) -> str | None:
    return os.environ.get(name)


def test_ranks_on_the_cpu_see_no_gpu_whatever_the_kernel_sees(monkeypatch):
    monkeypatch.setenv(hardware.VISIBLE, "1")
    with labkit.Ranks(2, device="cpu", quiet=True) as ranks:
        assert list(ranks.run(told, hardware.VISIBLE).values()) == ["", ""]
        monkeypatch.delenv(hardware.VISIBLE)
        ranks.restart()
        assert list(ranks.run(told, hardware.VISIBLE).values()) == ["", ""]


def test_a_variable_can_be_taken_from_the_next_ranks():
    with labkit.Ranks(1, device="cpu", quiet=True, env={"LABKIT_TEST": "x"}) as ranks:
        assert ranks.run(told, "LABKIT_TEST")[0] == "x"
        ranks.env["LABKIT_TEST"] = None
        ranks.restart()
        assert ranks.run(told, "LABKIT_TEST")[0] is None


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_the_choice_of_gpus_is_not_changed_behind_its_back(monkeypatch, device):
    monkeypatch.setattr(hardware, "gpus", lambda: ["a GPU", "a GPU"])
    with pytest.raises(ValueError, match="set CUDA_VISIBLE_DEVICES in os.environ, not in env"):
        labkit.Ranks(2, device, env={hardware.VISIBLE: "1"})


def test_a_call_on_a_gpu_ends_with_the_gpu_and_one_on_the_cpu_does_not_ask(monkeypatch):
    ended = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: ended.append(True))
    for device in ("cpu", "cuda:0"):
        monkeypatch.setattr(worker._State, "device", device)
        worker._arrive()
        assert len(ended) == (device != "cpu")


def test_what_a_gpu_holds_keeps_its_kind_on_the_way():
    weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    assert type(wire._on_cpu(torch, weight)) is torch.nn.Parameter
    assert not wire._on_cpu(torch, weight).requires_grad
    leaf = torch.ones(2, requires_grad=True)
    assert wire._on_cpu(torch, leaf).requires_grad and not wire._on_cpu(torch, leaf * 2).requires_grad


def test_a_record_is_labelled_by_the_device_that_its_process_uses(monkeypatch):
    def labels() -> list[str]:
        found = [process._label()]
        torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
        torch.cuda.device_count = lambda: 8
        return [*found, process._label()]

    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
        assert ranks.run(labels)[0] == ["gloo · cpu", "gloo · 2 gpu"]
