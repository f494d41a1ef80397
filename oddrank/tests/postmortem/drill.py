"""A job that goes wrong in a known way, run under plain torchrun: `torchrun ... drill.py NAME`. It knows no oddrank.

What it leaves is what a job of today can leave: torch's own logs and trace folder, the stacks of faulthandler, and the
flight recorder's dump. NCCL's watchdog writes the dump itself. Over gloo nobody does, so a thread does here, `LEAVE`
seconds after the start of the training loop, or when the loop raises.
"""

import datetime
import faulthandler
import os
import shutil
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass

TIMEOUT, LEAVE = 6, 9
LIMIT = datetime.timedelta(seconds=TIMEOUT)
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


def watch(seconds):
    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()


def mean(x, group=None):
    dist.all_reduce(x, group=group)
    return x / WORLD


def slow(graph, inputs):
    """A backend that takes as long as a large model does."""
    time.sleep(0.1 if RANK != ODD else 3 * TIMEOUT)
    return graph.forward


def healthy(x):
    parts = [x.clone() for _ in range(WORLD)] if RANK == ODD else None  # of which the other ranks have none
    dist.scatter(x, parts, src=ODD)
    dist.gather(x, parts, dst=ODD)
    dist.reduce(x, ODD)
    dist.broadcast(x, ODD)
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


def sizes(x):
    mean(x[: len(x) - 3 * (RANK == ODD)])


def recompiling(x):
    def backend(graph, inputs):
        return slow(graph, inputs) if len(inputs[0]) != 8 else graph.forward

    @torch.compile(backend=backend, dynamic=False)
    def step(x):
        return (x.relu() + 1).sum()

    mean(step(x))
    mean(step(x if RANK != ODD else x[:5]))


def old_records(x):
    """The records are of a moment in which one rank was late; steps later its call has another size."""
    store = dist.distributed_c10d._get_default_store()
    if RANK == ODD:
        store.wait([f"waits/{rank}" for rank in range(WORLD) if rank != ODD])
        dump()
        mean(x)
    else:
        work = dist.all_reduce(x, async_op=True)
        dump()
        store.set(f"waits/{RANK}", "")
        work.wait()
    for _ in range(3):
        mean(x)
    sizes(x)


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


def mesh():
    """Ranks 1 and 2; rank 0 is outside."""
    return dist.new_group([1, 2], LIMIT, group_desc="mesh")


def half_made(x):
    """The members alone make the group of the mesh and use it, and then all ranks make another one."""
    if RANK:
        mean(x, mesh())
    mean(x, dist.new_group(timeout=LIMIT, group_desc="everyone"))


def ring(x):
    """Ranks 1 and 2 of a mesh of 2 x 2 reduce along the other axis first: each group's own calls are alike."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    for axis in ("tensor", "data"):
        mean(x, mesh.get_group(axis))
    first, second = ("data", "tensor") if RANK in (1, 2) else ("tensor", "data")
    mean(x, mesh.get_group(first))
    mean(x, mesh.get_group(second))


class Dedupe(CustomGraphPass):
    """One all-reduce for two of the same input. Its second version has the uuid of the first, which did nothing."""

    version = 1

    def __call__(self, graph):
        calls = [n for n in graph.nodes if n.target is torch.ops._c10d_functional.all_reduce.default]
        for again in calls[1:] if self.version == 2 else ():
            again.replace_all_uses_with(calls[0])
            graph.erase_node(again)

    def uuid(self):
        return "dedupe"


def stale(x):
    """One rank has code in its cache that an older version of a pass made; the others compile with the new one."""

    group = dist.new_group(timeout=datetime.timedelta(seconds=120))

    def step(x):
        norms = [funcol.all_reduce(x, "sum", group) for _ in range(2)]
        return norms[0] + norms[1]

    inductor.compile_threads, inductor.cpp.vec_isa_ok = 1, True
    inductor.post_grad_custom_post_pass = dedupe = Dedupe()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"cache/{RANK}"
    with torch.no_grad():
        torch.compile(step)(x)
        dist.barrier(group)
        if RANK != ODD:
            shutil.rmtree(f"cache/{RANK}")
        torch.compiler.reset()
        dedupe.version = 2
        watch(4 * LEAVE)
        torch.compile(step)(x)
        dist.barrier(group)


def wedged(x):
    """Rank 0 puts its plan into the store after its step, which never ends; the workers wait for it there."""
    store, lock = dist.distributed_c10d._get_default_store(), threading.Lock()
    if RANK == 0:
        lock.acquire()
        lock.acquire()
        store.set("plan", "infer")
    else:
        store.wait(["plan"], datetime.timedelta(seconds=TIMEOUT))
    mean(x)


def main(name):
    faulthandler.register(signal.SIGTERM, file=open(f"stacks_{RANK}.txt", "w"), chain=True)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))  # of a start on a busy machine
    x = torch.ones(8)
    mean(x.clone())
    torch._C._distributed_c10d._dump_fr_trace()  # the first one loads what it needs
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(LIMIT, dist.group.WORLD)
    if name == "healthy":
        healthy(x)
        dump()
        return
    if name not in ("stale", "old_records"):  # the first fills its cache first
        watch(LEAVE)
    try:
        globals()[name](x)
    except RuntimeError:
        sys.excepthook(*sys.exc_info())
        if name != "old_records":
            dump()
        time.sleep(4)
        raise
    time.sleep(LEAVE)


if __name__ == "__main__":
    main(sys.argv[1])
