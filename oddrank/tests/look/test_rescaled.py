"""Pipeline schedules that divide gradients again are told, those that divide once are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from oddrank.look.rescaled import Scaling, rescaled
from oddrank.look.steps import Options, Steps, watching
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

MICROBATCHES = 3


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 9), nn.Linear(9, 2)

    def forward(self, x):
        return self.down(self.up(x).tanh())


def run(
    kind=ScheduleGPipe, calls: int = 3, clear: str = "after the step", **options
) -> tuple[str, list[torch.Tensor]]:
    """What is said of three optimizer steps, and one parameter's gradients after each schedule.step of the last."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    part, seen = Part(), []
    steps = Steps(Options())
    scaling = Scaling(steps)
    with watching(steps):
        part.compile(backend="eager")
        stage = PipelineStage(part, 0, 1, torch.device("cpu"))
        schedule = kind(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss, **options)
        opt = torch.optim.SGD(part.parameters(), lr=0.0)
        scaling.attach()
        for _ in range(3):
            seen.clear()
            for _ in range(calls):
                schedule.step(torch.ones(6, 4), target=torch.ones(6, 2))
                seen.append(part.down.bias.grad.clone())
                if clear == "after each":
                    opt.zero_grad()
            opt.step()
            opt.zero_grad(set_to_none=clear != "in place")
        scaling.close()
        said = rescaled(scaling.table().assign(rank=0))
    return "\n".join(f"{one.place}: {one.said}" for one in said), seen


@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B])
def test_gradients_that_are_divided_again_are_told(kind):
    said, (first, second, _) = run(kind)
    line = 1 + Path(__file__).read_text().splitlines().index(
        "                schedule.step(torch.ones(6, 4), target=torch.ones(6, 2))"
    )
    assert said.startswith(f"test_rescaled.py:{line}: schedule.step ran 3 times before one optimizer.step")
    assert (
        "divided the gradients by 3 each time: those of its first call are divided by 27, in place of 3"
        in said
    )
    torch.testing.assert_close(second, first / MICROBATCHES + first)  # so torch does


@pytest.mark.parametrize(
    "options",
    [{"scale_grads": False}, {"calls": 1}, {"clear": "after each"}, {"calls": 1, "clear": "in place"}],
)
def test_gradients_that_are_divided_once_are_not_told(options):
    said, gradients = run(**options)
    assert said == "" and len(gradients) == options.get("calls", 3)
