"""The jobs that go wrong on purpose: what gloo's flight recorder keeps of one."""

from __future__ import annotations

import pickle

import pytest

from tools import dumps


@pytest.mark.slow
def test_two_ranks_call_in_another_order_and_each_dump_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # NCCL's dumps need a GPU; gloo's are made everywhere
    assert dumps.main(["--seconds", "2", str(tmp_path), "order"]) == 0
    last = [
        pickle.loads((tmp_path / "order" / f"trace_{rank}").read_bytes())["entries"][-1]["profiling_name"]
        for rank in range(2)
    ]
    assert last == ["gloo:all_reduce", "gloo:all_gather"]
    assert "rank 0" in (tmp_path / "order" / "log_0.txt").read_text()
