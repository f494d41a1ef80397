"""Sets one switch, with an effect or without: python switches.py KIND. Plain torch: no oddrank."""

import sys
from unittest import mock

import torch
import torch._inductor.config as inductor
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.config
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def train(model, width=16):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        model(torch.ones(4, width)).square().mean().backward()
        opt.step()
        opt.zero_grad()


def cut():
    """DDP's first bucket holds 1 MiB, which is one layer of width 512."""
    train(torch.compile(DistributedDataParallel(Net(512)), backend="eager"), 512)


def sharded(at, names):
    """Block `at` gathers block `names` ahead of time."""
    model = Net()
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)
        block.compile(backend="eager")
    fully_shard(model)
    model.blocks[at].set_modules_to_forward_prefetch([model.blocks[names]])
    return model


def bypass():
    """The forward of a sharded block, called without the block: no hook gathers its parameters."""
    block = fully_shard(Block())
    forward = torch.compile(block.forward, backend="eager")
    x = torch.ones(4, 16)
    block.unshard()
    for _ in range(STEPS):
        forward(x)


def gathered(names=2):
    """Gathers that need nothing of each other, with a matmul on each."""

    @torch.compile
    def forward(xs, w):
        parts = [funcol.all_gather_tensor(x, 0, dist.group.WORLD) for x in xs]
        return sum(((part @ w).relu() for part in parts), (w @ w).sum())

    with torch.no_grad():
        for _ in range(STEPS):
            forward([torch.ones(8, 16) * i for i in range(names)], torch.ones(16, 16))


def one_rank():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    @torch.compile
    def forward(x):
        return funcol.all_reduce(x * 2, "sum", mesh)

    with torch.no_grad(), torch.distributed.config.patch(compile_on_one_rank=True):
        for _ in range(STEPS):
            forward(torch.ones(8))


def switched(name, value, names=2):
    with inductor.patch({name: value}):
        gathered(names)


def overlapped():
    """Overlap scheduling with stated rates: without triton it cannot ask the machine for them."""
    rates = dict(get_gpu_dram_gbps=lambda: 50.0, get_device_dram_gbps=lambda device=None: 50.0)
    rates |= dict(get_device_tflops=lambda dtype, device=None: 0.05)
    settings = "aten_distributed_optimizations."
    later = {f"{settings}compute_estimator": "analytical"}  # older torch has no other
    known = inductor.get_config_copy()
    with (
        mock.patch.multiple("torch.utils._runtime_estimation", create=True, **rates),
        inductor.patch({name: value for name, value in later.items() if name in known}),
    ):
        switched(f"{settings}enable_overlap_scheduling", True, 4)


KINDS = {
    "no switch": gathered,
    "cut": cut,
    "prefetch": lambda: train(sharded(0, 1)),
    "late prefetch": lambda: train(sharded(1, 0)),
    "bypass": bypass,
    "bucket": lambda: switched("bucket_all_gathers_fx", "all"),
    "overlap": overlapped,
    "one rank": one_rank,
}


def main():
    dist.init_process_group("gloo")
    KINDS[sys.argv[1]]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
