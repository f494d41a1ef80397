"""`oddrank look` does not change what it looks at: torch's counters are those of the program alone."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
import torch
from oddrank.look.program import watch
from oddrank.look.steps import Options
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

sys.path.insert(0, str(Path(__file__).parents[1] / "record"))
import programs  # noqa: E402

WORDS = """inference training step_in_compiled_function compiled_optimizer_with_schedule compiled_closure ddp sharded
sizes_that_change break_in_a_loop checkpointed compiled_in_a_compiled_function names_in_compiled_function left_dtensor
branches_on_values module_around_its_compiled_one buffers_of_a_compiled_module buffers_around_a_compiled_module"""


TURNS = 5


def train(call, opt):
    for _ in range(TURNS):
        call(programs.batch()).sum().backward()
        opt.step()
        opt.zero_grad()


def left_dtensor():
    net, mesh = programs.small_net(), init_device_mesh("cpu", (1,))

    @torch.compile(backend="aot_eager")
    def gathered(x):
        return net(DTensor.from_local(net(x), mesh, [Shard(0)]).full_tensor())

    train(gathered, torch.optim.SGD(net.parameters(), lr=0.1))


def buffers_of_a_compiled_module(inside=False):
    net = nn.Sequential(programs.small_net(), nn.BatchNorm1d(8))
    if inside:
        net[0] = torch.compile(net[0], backend="aot_eager")
    ddp = nn.parallel.DistributedDataParallel(net)
    call = ddp if inside else torch.compile(ddp, backend="aot_eager")
    train(call, torch.optim.SGD(net.parameters(), lr=0.1))


def buffers_around_a_compiled_module():
    buffers_of_a_compiled_module(inside=True)


def branches_on_values():
    def trained(x):
        x = x + random.randint(1, 3) if random.random() < 2 else x
        if os.path.exists("/") and x.sum() > 0:
            x = x * x.mean().item()
        return x.sum() if not x.isnan().any() else x.mean()

    def scaled(x):
        return x * x.sum().item()

    random.seed(0)
    compiled, parameter = torch.compile(trained, backend="aot_eager"), nn.Parameter(programs.batch())
    opt = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(TURNS):
        loss = compiled(parameter)
        loss.backward()
        if float(loss) > 1e9 or loss.tolist() == 0:
            break
        opt.step()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        torch.compile(scaled, backend="aot_eager", fullgraph=True)(programs.batch())


def module_around_its_compiled_one():
    class Task(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).sum()

    net = programs.small_net()
    compiled, opt = torch.compile(Task(net), backend="eager"), torch.optim.SGD(net.parameters(), lr=0.1)
    for size in (4, 6, 4):
        for _ in range(TURNS):
            compiled(programs.batch(size)).backward()
            opt.step()
        with torch.no_grad():
            net(programs.batch(size))
            torch.compile(net[0], backend="eager")(programs.batch(size))


def run(name: str) -> None:
    if name not in programs.PROGRAMS:
        return globals()[name]()
    step = programs.PROGRAMS[name].make()
    for turn in range(TURNS):
        step(turn)


def counted(program: str, looked_at: bool) -> dict[str, dict[str, int]]:
    """Torch's counters after a program, in words that do not name its process."""
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    if looked_at:
        report = watch(run, (program,), {}, Options(1, 2, values=True))
        assert report.provenance["steps"] >= 3, "it recorded"
    else:
        run(program)
    return {kind: dict(found) for kind, found in counters.items() if found}


@pytest.mark.slow
@pytest.mark.parametrize("program", WORDS.split())
def test_counters_are_those_without_look(alone, program):
    for looked_at in (False, True):  # once for what torch makes on first use
        alone.run(counted, program, looked_at)
    plain, looked = (alone.run(counted, program, looked_at)[0] for looked_at in (False, True))
    assert plain["frames"] and looked == plain
