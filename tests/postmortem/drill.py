"""A job that goes wrong in a known way, run under plain torchrun: `torchrun ... drill.py NAME`. It knows no labkit.

What it leaves is what a job of today can leave: torch's own logs and trace folder, the stacks of faulthandler, and the
flight recorder's dump. NCCL's watchdog writes the dump itself. Over gloo nobody does, so a thread does here, `LEAVE`
seconds after the start of the training loop, or when the loop raises.
"""

import datetime
import faulthandler
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

TIMEOUT, LEAVE = 6, 9
RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
ODD = 1


def dump():
    """Write the flight record of this rank."""
    with open(f"trace_{RANK}", "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace())


def leave():
    with open(f"stacks_{RANK}.txt", "w") as file:
        faulthandler.dump_traceback(file)
    dump()
    time.sleep(4)  # torchrun ends all ranks when the first one ends
    os._exit(1)


def mean(x, group=None):
    dist.all_reduce(x, group=group)
    return x / WORLD


def slow(graph, inputs):
    """A backend that takes as long as a large model does."""
    time.sleep(0.1 if RANK != ODD else 3 * TIMEOUT)
    return graph.forward


def healthy(x):
    step = torch.compile(lambda x: x.sin() * 2, backend="eager")
    for _ in range(4):
        mean(step(x))


def other(x):
    if RANK == ODD:
        dist.broadcast(x, 0)
    else:
        mean(x)


def batch():
    time.sleep(60)  # a slow disk
    return torch.ones(8)


def missing(x):
    if RANK == ODD:
        x = batch()
    mean(x)


def sizes(x):
    mean(x[: len(x) - 3 * (RANK == ODD)])


def order(x):
    groups = [dist.new_group(group_desc=name) for name in ("tensor", "data")]
    for group in groups:
        mean(x, group)
    for group in groups[:: -1 if RANK == ODD else 1]:
        mean(x, group)


def compiling(x):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    step = torch.compile(model, backend=slow)
    mean(step(x).detach())


def recompiling(x):
    def backend(graph, inputs):
        return slow(graph, inputs) if len(inputs[0]) != 8 else graph.forward

    @torch.compile(backend=backend, dynamic=False)
    def step(x):
        return (x.relu() + 1).sum()

    mean(step(x))
    mean(step(x if RANK != ODD else x[:5]))


def killed(x):
    mean(x)
    if RANK == ODD:
        os.kill(os.getpid(), signal.SIGKILL)
    mean(x)


def raising(x):
    mean(x)
    if RANK == ODD:
        weights = {"layer": 1}
        print(weights["layers"])
    mean(x)


def subgroups(x):
    """Two pairs of ranks with a group each: ranks 2 and 3 do less, and rank 1 of the first pair leaves out a call."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    tensor = mesh.get_group("tensor")
    for _ in range(3 if RANK < 2 else 1):
        mean(x, tensor)
    if RANK != ODD:
        mean(x, tensor)
    mean(x)


def main(name):
    faulthandler.register(signal.SIGTERM, file=open(f"stacks_{RANK}.txt", "w"), chain=True)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT))
    x = torch.ones(8)
    for _ in range(2):
        mean(x.clone())
    torch._C._distributed_c10d._dump_fr_trace()  # the first one loads what it needs
    if name == "healthy":
        healthy(x)
        dump()
        return
    timer = threading.Timer(LEAVE, leave)
    timer.daemon = True
    timer.start()
    try:
        globals()[name](x)
    except RuntimeError:
        sys.excepthook(*sys.exc_info())
        dump()
        time.sleep(4)
        raise
    time.sleep(LEAVE)


if __name__ == "__main__":
    main(sys.argv[1])
