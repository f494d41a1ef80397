"""`oddrank look` does not change what it looks at: torch's counters are those of the program alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from oddrank.look.program import watch
from oddrank.look.steps import Options
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

sys.path.insert(0, str(Path(__file__).parents[1] / "record"))
import programs  # noqa: E402

WORDS = """inference training step_in_compiled_function compiled_optimizer_with_schedule compiled_closure ddp sharded
sizes_that_change break_in_a_loop checkpointed compiled_in_a_compiled_function names_in_compiled_function"""


def left_dtensor():
    """A DTensor that is made and left in a compiled function."""
    net, mesh = programs.small_net(), init_device_mesh("cpu", (1,))

    @torch.compile(backend="aot_eager")
    def gathered(x):
        return net(DTensor.from_local(net(x), mesh, [Shard(0)]).full_tensor())

    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(turn):
        gathered(programs.batch()).sum().backward()
        opt.step()
        opt.zero_grad()

    return step


PROGRAMS = [*(programs.PROGRAMS[name] for name in WORDS.split()), programs.Program(left_dtensor, 1, 5)]


def run(program: programs.Program) -> None:
    step = program.make()
    for turn in range(5):
        step(turn)


def counted(program: programs.Program, looked_at: bool) -> dict[str, dict[str, int]]:
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
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_counters_are_those_without_look(alone, program):
    for looked_at in (False, True):  # once for what torch makes on first use
        alone.run(counted, program, looked_at)
    plain, looked = (alone.run(counted, program, looked_at)[0] for looked_at in (False, True))
    assert plain["frames"] and looked == plain
