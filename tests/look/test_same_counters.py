"""`oddrank look` does not change what it looks at: torch's counters are those of the program alone."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from oddrank.look.program import watch
from oddrank.look.steps import Options
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.utils.checkpoint import checkpoint

import labkit

TURNS = 5


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def batch(size: int = 4) -> torch.Tensor:
    return torch.ones(size, 8)


def train(run, opt):
    for _ in range(TURNS):
        run(batch()).sum().backward()
        opt.step()
        opt.zero_grad()


def inference():
    compiled = torch.compile(model(), backend="eager")
    with torch.no_grad():
        for _ in range(TURNS):
            compiled(batch())


def training():
    net = model()
    compiled, opt = torch.compile(net, backend="aot_eager"), torch.optim.Adam(net.parameters())
    train(compiled, opt)


def step_in_compiled_function():
    net = model()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    @torch.compile(backend="aot_eager")
    def train_step(x):
        net(x).sum().backward()
        opt.step()
        opt.zero_grad()

    for _ in range(TURNS):
        train_step(batch())


def compiled_optimizer_with_schedule():
    net = model()
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 1.0, total_steps=TURNS + 1)

    @torch.compile(backend="eager")
    def update():
        opt.step()
        schedule.step()

    for _ in range(TURNS):
        net(batch()).sum().backward()
        update()


def compiled_closure():
    net = model()
    opt = torch.optim.LBFGS(net.parameters(), max_iter=2)

    @torch.compile(backend="eager")
    def closure():
        opt.zero_grad()
        loss = net(batch()).square().sum()
        loss.backward()
        return loss

    for _ in range(TURNS):
        opt.step(closure)


def ddp():
    net = nn.parallel.DistributedDataParallel(model())
    compiled, opt = torch.compile(net, backend="aot_eager"), torch.optim.SGD(net.parameters(), lr=0.1)
    train(compiled, opt)


def buffers(inside: bool):
    net = nn.Sequential(model(), nn.BatchNorm1d(8))
    if inside:
        net[0] = torch.compile(net[0], backend="aot_eager")
    ddp = nn.parallel.DistributedDataParallel(net)
    run = ddp if inside else torch.compile(ddp, backend="aot_eager")
    train(run, torch.optim.SGD(net.parameters(), lr=0.1))


def buffers_of_a_compiled_module():
    buffers(inside=False)


def buffers_around_a_compiled_module():
    buffers(inside=True)


def sharded():
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    net.compile(backend="aot_eager")
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    train(net, opt)


def sizes_that_change():
    compiled = torch.compile(model(), backend="eager", dynamic=False)
    with torch.no_grad():
        for size in range(2, 2 + TURNS):
            compiled(batch(size))


def break_in_a_loop():
    def given_up(x):
        for _ in range(3):
            x = x.sin()
            torch._dynamo.graph_break()
        return x

    compiled = torch.compile(given_up, backend="eager")
    for _ in range(TURNS):
        compiled(batch())


def checkpointed():
    net = model()
    compiled = torch.compile(lambda x: checkpoint(net, x, use_reentrant=False), backend="aot_eager")
    for _ in range(TURNS):
        compiled(batch()).sum().backward()


def names_in_compiled_function():
    net = model()

    @torch.compile(backend="aot_eager")
    def penalised(x):
        return net(x).sum() + sum(p.square().sum() for name, p in net.named_parameters() if "bias" in name)

    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    train(penalised, opt)


def left_dtensor():
    net, mesh = model(), init_device_mesh("cpu", (1,))

    @torch.compile(backend="aot_eager")
    def gathered(x):
        return net(DTensor.from_local(net(x), mesh, [Shard(0)]).full_tensor())

    train(gathered, torch.optim.SGD(net.parameters(), lr=0.1))


def compiled_in_a_compiled_function():
    inner = torch.compile(model(), backend="eager")

    @torch.compile(backend="eager")
    def outer(x):
        print(end="")
        return inner(x).sin()

    with torch.no_grad():
        for _ in range(TURNS):
            outer(batch())


def branches_on_values():
    def trained(x):
        x = x + random.randint(1, 3) if random.random() < 2 else x
        if os.path.exists("/") and x.sum() > 0:
            x = x * x.mean().item()
        return x.sum() if not x.isnan().any() else x.mean()

    def scaled(x):
        return x * x.sum().item()

    random.seed(0)
    compiled, parameter = torch.compile(trained, backend="aot_eager"), nn.Parameter(batch())
    opt = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(TURNS):
        loss = compiled(parameter)
        loss.backward()
        if float(loss) > 1e9 or loss.tolist() == 0:
            break
        opt.step()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        torch.compile(scaled, backend="aot_eager", fullgraph=True)(batch())


def module_around_its_compiled_one():
    class Task(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).sum()

    net = model()
    compiled, opt = torch.compile(Task(net), backend="eager"), torch.optim.SGD(net.parameters(), lr=0.1)
    for size in (4, 6, 4):
        for _ in range(TURNS):
            compiled(batch(size)).backward()
            opt.step()
        with torch.no_grad():
            net(batch(size))
            torch.compile(net[0], backend="eager")(batch(size))


PROGRAMS = (
    *(inference, training, step_in_compiled_function, compiled_optimizer_with_schedule, compiled_closure),
    *(ddp, sharded, sizes_that_change, break_in_a_loop, checkpointed, compiled_in_a_compiled_function),
    *(names_in_compiled_function, left_dtensor, branches_on_values, module_around_its_compiled_one),
    *(buffers_of_a_compiled_module, buffers_around_a_compiled_module),
)


def counted(program: Callable[[], None], looked_at: bool) -> dict[str, dict[str, int]]:
    """Torch's counters after a program, in words that do not name its process."""
    counters = torch._dynamo.utils.counters  # this process's
    torch._dynamo.reset()
    counters.clear()
    if looked_at:
        report = watch(program, (), {}, Options(1, 2, values=True))
        assert report.provenance["steps"] >= 3, "it recorded"
    else:
        program()
    assert dist.is_initialized()
    return {kind: dict(found) for kind, found in counters.items() if found}


@pytest.mark.slow
def test_counters_are_those_without_look():
    with labkit.Ranks(1, device="cpu", quiet=True) as one:
        for program in PROGRAMS:
            for looked_at in (False, True):  # once for what torch makes on first use
                one.run(counted, program, looked_at)
            alone, looked = (one.run(counted, program, looked_at)[0] for looked_at in (False, True))
            assert alone["frames"], program.__name__
            assert looked == alone, program.__name__
