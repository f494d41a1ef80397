"""Processes that become the zygotes and kernels of tests by forking: they have imported what these import, once.

The one for zygotes also does once what every rank would do as it compiles for the first time. That is half of a small
first compile, and the tests start more than a thousand ranks. The one for kernels is a fork of it, which has imported
what lessons draw with, too. (Tests of kernels have plain ones, and the saved outputs of lessons are from plain ones.)

`sitecustomize` hands a process over where `PYTHON_TESTS_PREFORK` has the beginning of the names of their sockets: its
stdout and stderr, a zygote's socket, its environment and its folder. What torch has read of the environment must be the
same; where it is not, the process imports by itself. By its name, the variable keeps these zygotes apart from those of
tests that have their own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress

ZYGOTE, KERNEL = "labkit.ranks.zygote", "ipykernel_launcher"
LESSONS = "ipykernel.kernelapp,ipykernel.ipkernel,ipywidgets,pandas,matplotlib.pyplot,matplotlib.backends.backend_agg"
# a rank sets its number of threads by itself, and nothing here has NCCL
OF_TORCHRUN = {"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
LARGEST = 1 << 18  # bytes of a request


def hand_over() -> None:
    """In a process that is to be a zygote or a kernel: let it be forked, and end with the fork; returns if refused."""
    module = ZYGOTE if ZYGOTE in sys.orig_argv else KERNEL
    arguments = sys.orig_argv[sys.orig_argv.index(module) + 1 :]
    own = [int(arguments[0])] if module == ZYGOTE else []
    asked = {"arguments": arguments, "environ": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as there:
        try:
            there.connect(f"{os.environ['PYTHON_TESTS_PREFORK']}.{module}")
            socket.send_fds(there, [json.dumps(asked).encode()], [1, 2, *own])
            pid = there.recv(16)
        except OSError:
            return
        if pid:
            for fd in own:
                os.close(fd)
            if module == KERNEL:
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, lambda number, _: os.kill(int(pid), number))
            there.recv(1)  # nothing: it has ended
            os._exit(0)


def lazy_imports() -> list[str]:
    """Return what a first compile with Inductor imports, in order: a fork that ends behind it tells."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as cache:
        if os.fork() == 0:
            try:
                import torch

                before = set(sys.modules)
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
                layer = torch.nn.Linear(64, 64)
                torch.compile(lambda x: layer(x).sin().sum())(torch.ones(4, 64)).backward()
                os.write(writing, json.dumps([name for name in sys.modules if name not in before]).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as told:
            return json.loads(told.read() or "[]")  # nothing where there is no compiler


def warm() -> None:
    """Do what every first compile does, of whatever: imports, the hash of torch's sources, tables."""
    for name in lazy_imports():
        with suppress(ImportError):  # what Inductor made for this compile is nobody else's
            importlib.import_module(name)
    import torch
    from torch._dynamo import funcname_cache, guards, trace_rules
    from torch._functorch import partitioners
    from torch._inductor.codecache import torch_key
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch.distributed import _functional_collectives

    torch.overrides.get_overridable_functions()
    trace_rules.get_torch_obj_rule_map()
    partitioners.pointwise_ops()
    torch_key()
    joint_graph.lazy_init(torch.device("cpu"))  # as Inductor calls them
    post_grad.lazy_init()
    # the names of their functions, for Dynamo's log
    funcname_cache._add_file(_functional_collectives.__file__)
    funcname_cache._add_file(torch.nn.functional.__file__)
    # behind each frame that it compiles, Dynamo fills 32 MB in order to time the guards with cold caches, for its log
    guards.profile_guard_manager = lambda *_: 0.0


def try_cpu() -> None:
    """Let Inductor try which instructions the CPU has: every rank would start a program for each set of them."""
    from torch._inductor import cpu_vec_isa
    from torch._inductor.exc import InvalidCxxCompiler

    with tempfile.TemporaryDirectory() as os.environ["TORCHINDUCTOR_CACHE_DIR"], suppress(InvalidCxxCompiler):
        cpu_vec_isa.valid_vec_isa_list()


def listen(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(64)
    return listening


def main() -> None:
    """Import, then fork zygotes and kernels: `python -m prefork SOCKETS PARENT_PID MODULE...`."""
    sockets, parent, *modules = sys.argv[1:]
    listening = {module: listen(f"{sockets}.{module}") for module in (ZYGOTE, KERNEL)}
    from labkit.ranks import zygote
    from labkit.ranks.environment import Started, complete

    zygote.die_with_parent(int(parent), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    started = Started(os.environ)
    os.environ.__class__ = zygote.Noting
    gc.disable()
    zygote.import_all(modules)
    warm()
    zygote.settle()
    started.read = frozenset(zygote.Noting.read)
    started.made = {name: value for name, value in os.environ.items() if started.environ.get(name) != value}
    try_cpu()  # behind that: zygotes may have another folder, and what else it looks up

    def late(environ: dict[str, str]) -> set[str]:
        found = {*started.late(complete(environ))}
        return found - OF_TORCHRUN if "TORCHELASTIC_RUN_ID" in environ else found

    class Zygote(zygote.Zygote):
        def prepare(self) -> None:
            self.reply({"ready": True, "read": sorted(started.read), "made": started.made})

    def become_zygote(arguments: list[str], there: socket.socket, sock: int) -> None:
        Zygote(socket.socket(fileno=sock), []).serve()

    def become_kernel(arguments: list[str], there: socket.socket) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # it ends with the process that its manager has started
        threading.Thread(target=lambda: os._exit(len(there.recv(1))), daemon=True).start()
        sys.argv = [KERNEL, *arguments]
        runpy.run_module(KERNEL, run_name="__main__", alter_sys=True)

    here, first = os.getpid(), os.fork() != 0
    module, become = (ZYGOTE, become_zygote) if first else (KERNEL, become_kernel)
    if not first:
        zygote.die_with_parent(here, signal.SIGKILL)
        gc.disable()
        # as kernels have them
        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
        os.environ["JPY_PARENT_PID"] = str(os.getpid())
        zygote.import_all(LESSONS.split(","))
        zygote.settle()
    listening.pop(KERNEL if first else ZYGOTE).close()
    here = os.getpid()
    while True:
        there, _ = listening[module].accept()
        message, fds, _, _ = socket.recv_fds(there, LARGEST, 3)
        asked = json.loads(message or "{}")  # nothing: it was ended meanwhile
        if asked and not late(asked["environ"]):
            if (module == KERNEL or asked["arguments"][2:] == modules) and os.fork() == 0:
                break
        there.close()
        for fd in fds:
            os.close(fd)
    out, err, *own = fds
    listening[module].close()
    os.setsid()
    zygote.die_with_parent(here, signal.SIGTERM)
    os.environ.clear()
    os.environ.update(asked["environ"] | started.made)
    os.chdir(asked["folder"])
    sys.path[0] = asked["folder"]
    for number, fd in enumerate((out, err), 1):
        os.dup2(fd, number)
        os.close(fd)
    there.send(b"%d" % os.getpid())
    become(asked["arguments"], there, *own)


if __name__ == "__main__":
    main()
