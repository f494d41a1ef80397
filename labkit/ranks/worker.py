"""What runs inside a rank: it joins the process group, then runs calls until the kernel is gone.

The main thread runs the calls. A control thread answers what the rank is doing, also while the main thread is stuck in
a collective, and ends the process when the kernel's end of the socket closes.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import random
import signal
import socket
import sys
import threading
import traceback
import warnings
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any

from oddrank.live import failure, introspect
from oddrank.live import here as this_rank
from oddrank.live.failure import Outcome, message_of
from oddrank.live.here import Here
from oddrank.live.stacks import bottom
from oddrank.record import install

from labkit import hardware
from labkit.ranks import cells, transfer, wire
from labkit.torch_compat import fake_store, gather_cuda_over_gloo

bottom(__file__)
failure.travel = (wire.dumps, wire.loads)

HOST = "127.0.0.1"
LOST = "labkit: labkit ended it, because its connection to the process that made the ranks was lost"


_libc = ctypes.CDLL(None)


class _State:
    crash = -1  # the file for last words
    device = "cpu"
    check: Any = None  # the module that compares collectives, in checked ranks
    busy = True  # while starting, too; a SIGINT between calls is not the reader's code to interrupt


def _interrupt(signum: int, frame: FrameType | None) -> None:
    if _State.busy:
        raise KeyboardInterrupt


def main(calls_fd: int, control_fd: int, crash_fd: int, listener_fd: int | None = None) -> None:
    """Run a rank on inherited files, the last one the rendezvous store's on the rank that serves it; never returns."""
    _State.crash = crash_fd
    sys.stdin = open(os.devnull)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, _interrupt)
    calls, control = socket.socket(fileno=calls_fd), socket.socket(fileno=control_fd)
    inbox = wire.Inbox(calls)
    config = inbox.receive()
    threading.Thread(target=_answer, args=(control,), daemon=True, name="labkit-control").start()
    try:
        _join(config, listener_fd)
        wire.send(calls, (wire.STARTING, None))
    except BaseException as error:
        wire.send(calls, (wire.STARTING, Outcome.of(config["rank"], error)))
        _leave(1)
    try:
        _serve(calls, inbox, config["rank"])
    except (EOFError, OSError):  # the kernel is gone
        _end_group()


def _end_group() -> None:
    with suppress(OSError):
        os.write(_State.crash, f"{LOST}\n".encode())
    os.killpg(0, signal.SIGKILL)  # this process and whatever it started
    os._exit(0)


def _leave(code: int) -> None:
    """End without interpreter teardown: gloo's threads may abort there ("terminate called ...")."""
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    _libc.fflush(None)


def _join(config: dict[str, Any], listener_fd: int | None) -> None:
    rank, world_size = config["rank"], config["world_size"]
    for name, value in config["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR=HOST,
        MASTER_PORT=str(config["port"]),
    )
    # do not depend on how a machine's own name resolves
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # when a collective's time is over, end: not after a minute of writing files
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000")
    sys.path[:] = config["path"]
    sys.argv[:] = ["labkit-rank"]
    transfer.create_module("__main__")
    os.chdir(config["cwd"])
    random.seed()  # forked ranks would otherwise draw the same numbers where separate processes do not
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)  # ranks share the cores of one machine
    device = "cpu"
    if config["device"] == "cuda":
        # no group is tied to its GPU (`device_id`), or NCCL would connect before the first collective
        warnings.filterwarnings("ignore", message=r"barrier\(\): using the device")
        if not (count := torch.cuda.device_count()):
            built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
            raise RuntimeError(
                f"nvidia-smi shows a GPU, and torch {torch.__version__}, built {built}, finds none"
            )
        index = rank % count
        os.environ.update(hardware.share_a_gpu(rank, world_size, count))
        torch.cuda.set_device(index)
        device = _State.device = f"cuda:{index}"
    backend = config["backend"]
    this_rank.declare(Here(rank, world_size, device, backend, config["label"]))
    install()
    introspect.prepare()
    limit = datetime.timedelta(seconds=config["collective_timeout"])
    if backend == "fake":
        dist.init_process_group("fake", store=fake_store(), rank=rank, world_size=world_size)
        return
    kind = None
    if backend == "shm":
        from labkit import shm

        shm.register()
        kind = shm.ShmProcessGroup
    if backend == "gloo" and device != "cpu":
        gather_cuda_over_gloo()
    reach: dict[str, Any] = {
        "host_name": HOST,
        "port": config["port"],
        "timeout": limit,
        "wait_for_workers": False,
    }
    serves: dict[str, Any] = (
        {} if listener_fd is None else {"master_listen_fd": listener_fd, "is_master": True}
    )
    store = dist.TCPStore(world_size=world_size, **reach, **serves)
    if config["verify"]:
        from oddrank.live import collective_check

        _State.check = collective_check
        collective_check.install(backend, dist.TCPStore(**reach), kind)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)


def _serve(calls: socket.socket, inbox: wire.Inbox, rank: int) -> None:
    functions: dict[bytes, transfer.Unpickled] = {}
    check = _State.check
    me = os.getpid()
    while True:
        _State.busy = False
        kind, number, sources, *parts = inbox.receive()
        cells.learn(sources)
        try:
            _State.busy = True
            this_rank.forget()
            if check:
                check.begin(number)
            if kind == "call":
                value = _call(functions, *parts)
            else:
                value = cells.run(*parts)
            if os.getpid() == me:
                _arrive()
            if check:
                check.finish()
            _State.busy = False
        except BaseException as error:
            _State.busy = False
            if os.getpid() != me:
                traceback.print_exc()
                _leave(1)
            _flush()
            wire.send(calls, (number, Outcome.of(rank, error)))
            continue
        if os.getpid() != me:  # a child that the reader's code forked: it must not answer in the rank's name
            _leave(0)
        answer: wire.Packed | Outcome
        try:
            answer = wire.pack(value)
        except Exception as error:
            what = f"{type(value).__name__}: {message_of(error)}"
            answer = Outcome(rank, "unpicklable", message=what)
        del value
        _flush()
        wire.send(calls, (number, answer))


def _arrive() -> None:
    """Wait for the GPU: what fails or hangs in the kernels of a call belongs to this call, and not to the next one."""
    if _State.device != "cpu":
        import torch

        torch.cuda.synchronize()


def _call(functions: dict[bytes, transfer.Unpickled], function: bytes, arguments: tuple[Any, Any]) -> Any:
    # one object for one pickle: a fresh function object each call would make torch.compile compile again
    if function not in functions:
        if len(functions) >= 256:
            functions.clear()
        functions[function] = transfer.Unpickled(function)
    if arguments == transfer.NOTHING:
        return functions[function].use()()
    args, kwargs = transfer.Unpickled(*arguments).use()
    return functions[function].use()(*args, **kwargs)


def _answer(control: socket.socket) -> None:
    inspector = introspect.Inspector(lambda: _State.busy)
    inbox = wire.Inbox(control)
    try:
        while True:
            question = inbox.receive()
            answer: introspect.Activity | introspect.Snapshot | None
            try:
                if _State.device != "cpu":
                    # of this thread, which asks NCCL's events
                    sys.modules["torch"].cuda.set_device(_State.device)
                answer = inspector.look() if question == "look" else inspector.where()
                if isinstance(answer, introspect.Snapshot) and _State.busy:
                    answer = replace(answer, failure=this_rank.failure())
            except Exception:
                # a board of shared memory may be closed by then: an empty answer is better than none ever again
                answer = None if question == "look" else introspect.Snapshot([], "", [])
            wire.send(control, (question, answer))
    except (EOFError, OSError):
        _end_group()
