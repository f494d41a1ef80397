"""A process that becomes the zygotes of tests by forking: it has imported what they import, once for all of them.

It also does once what every rank would do as it compiles for the first time. That is half of a small first compile,
and the tests start more than a thousand ranks.

`sitecustomize` hands a zygote over where `PYTHON_TESTS_PREFORK` names the socket of this process: its socket and its
stderr, its environment and its folder. What torch has read of the environment must be the same; where it is not, the
zygote imports by itself. By its name, the variable keeps these zygotes apart from those of tests that have their own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from typing import Any

MODULE = "labkit.ranks.zygote"
LARGEST = 1 << 18  # bytes of a request


def hand_over() -> None:
    """In a process that is to be a zygote: let the other one fork it and wait for its end; returns if it refuses."""
    fd, parent, *modules = sys.orig_argv[sys.orig_argv.index(MODULE) + 1 :]
    asked = {"modules": modules, "environ": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as there:
        try:
            there.connect(os.environ["PYTHON_TESTS_PREFORK"])
            socket.send_fds(there, [json.dumps(asked).encode()], [int(fd), 2])
            taken = there.recv(1)
        except OSError:
            return
        if taken:
            os.close(int(fd))
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
    from torch._dynamo import guards, trace_rules
    from torch._functorch import partitioners
    from torch._inductor.codecache import torch_key
    from torch._inductor.fx_passes import joint_graph, post_grad

    torch.overrides.get_overridable_functions()
    trace_rules.get_torch_obj_rule_map()
    partitioners.pointwise_ops()
    torch_key()
    joint_graph.lazy_init(torch.device("cpu"))  # as Inductor calls them
    post_grad.lazy_init()
    # behind each frame that it compiles, Dynamo fills 32 MB in order to time the guards with cold caches, for its log
    guards.profile_guard_manager = lambda *_: 0.0


def try_cpu() -> None:
    """Let Inductor try which instructions the CPU has: every rank would start a program for each set of them."""
    from torch._inductor import cpu_vec_isa
    from torch._inductor.exc import InvalidCxxCompiler

    with tempfile.TemporaryDirectory() as os.environ["TORCHINDUCTOR_CACHE_DIR"], suppress(InvalidCxxCompiler):
        cpu_vec_isa.valid_vec_isa_list()


def main() -> None:
    """Import, then fork zygotes: `python -m prefork SOCKET PARENT_PID MODULE,MODULE...`."""
    path, parent, *modules = sys.argv[1:]
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(64)
    from labkit.ranks import zygote
    from labkit.ranks.environment import Started

    zygote.die_with_parent(int(parent), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    started = Started(os.environ)
    os.environ.__class__ = zygote.Noting
    gc.disable()
    for step in modules:
        zygote.import_all(step)
    warm()
    zygote.settle()
    started.read = frozenset(zygote.Noting.read)
    started.made = {name: value for name, value in os.environ.items() if started.environ.get(name) != value}
    try_cpu()  # behind that: zygotes may have another folder, and what else it looks up

    class Zygote(zygote.Zygote):
        def prepare(self) -> None:
            os.environ.update(started.made)
            self.reply({"ready": True, "read": sorted(started.read), "made": started.made})

    def become(there: socket.socket, asked: dict[str, Any], sock: int, err: int) -> None:
        listening.close()
        os.setsid()
        zygote.die_with_parent(here, signal.SIGTERM)
        os.environ.clear()
        os.environ.update(asked["environ"])
        os.chdir(asked["folder"])
        sys.path[0] = asked["folder"]
        os.dup2(err, 2)
        os.close(err)
        there.send(b"1")
        Zygote(socket.socket(fileno=sock), []).serve()

    here = os.getpid()
    while True:
        there, _ = listening.accept()
        message, fds, _, _ = socket.recv_fds(there, LARGEST, 2)
        asked = json.loads(message or "{}")  # nothing: it was ended meanwhile
        if asked.get("modules") == modules and not started.late(asked["environ"]) and os.fork() == 0:
            try:
                become(there, asked, *fds)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)
        there.close()
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    main()
