"""What torch logs on each rank goes to a file of its own, and nothing silences what was asked to be seen."""

from __future__ import annotations

import pytest

import labkit


def broken() -> None:
    import torch

    @torch.compile(backend="eager")
    def model(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    model(torch.ones(3 + torch.distributed.get_rank()))


@pytest.mark.slow
def test_each_rank_has_a_log_and_a_trace(tmp_path, capfd):
    logs = {"logs": tmp_path / "logs", "env": {"TORCH_LOGS": "graph_breaks,graph_code"}}
    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True, **logs) as ranks:
        ranks.run(broken)
    for rank in (0, 1):
        assert "Call to `torch._dynamo.graph_break()`" in (tmp_path / "logs" / f"rank-{rank}.log").read_text()
        assert len(list((tmp_path / "logs").glob(f"dedicated_log_torch_trace_rank_{rank}_*.log"))) == 1
    shown = capfd.readouterr().err
    assert "[rank 0]" in shown and "Call to `torch._dynamo.graph_break()`" in shown
