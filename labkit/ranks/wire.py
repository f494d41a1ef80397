"""Messages between the kernel and the ranks: framed pickles over sockets.

A message is a length, a pickle, and the big buffers that the pickle leaves out (pickle protocol 5). So a tensor of 1 GB
is sent from its own memory, and received into the memory that it keeps.
"""

from __future__ import annotations

import importlib
import io
import mmap
import pickle
import socket
import struct
import sys
import types
from collections import deque
from collections.abc import Generator
from typing import Any, TypeAlias

import cloudpickle
from oddrank.live.stacks import hide

hide(__file__)

PREFIX = struct.Struct("!QQ")  # bytes that follow, and how many buffers; their sizes and the pickle follow
SIZE = struct.Struct("!Q")
STARTING = 0  # in an answer, in place of the number of a call: the rank has started, or why it could not
CHUNK = 1 << 20
APART = 1 << 16  # buffers of this many bytes travel outside the pickle


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, but CUDA tensors travel as CPU tensors: a result must not make a CUDA context in the kernel."""

    def reducer_override(self, obj: Any) -> Any:
        module = obj if isinstance(obj, types.ModuleType) else None
        if module and sys.modules.get(module.__name__) is module:
            # cloudpickle does so for plain modules only, and torch.ops is one of a kind of its own
            if type(module) is not types.ModuleType:
                return importlib.import_module, (module.__name__,)
        torch = sys.modules.get("torch")
        if torch is not None and type(obj).__module__ == type(torch.ops).__module__:
            # of a kind that pickle cannot take: `torch.ops.aten`, `torch.ops.aten.add`, `torch.ops.aten.add.Tensor`
            path = getattr(obj, "__name__", "").removeprefix("torch.ops.") if module else str(obj)
            if (module or "." in path) and _operator(path) is obj:
                return _operator, (path,)
        if torch is not None and isinstance(obj, torch.Tensor):
            if obj.is_cuda:
                return _on_cpu(torch, obj).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            if type(obj) is torch.Tensor and _is_plain(torch, obj):
                raw = obj.detach().reshape(-1).view(torch.uint8).numpy()
                return _tensor, (pickle.PickleBuffer(raw), obj.dtype, obj.shape, obj.requires_grad)
        return super().reducer_override(obj)


def _operator(path: str) -> Any:
    """An operator of torch's, or a namespace of operators, by its path below `torch.ops`."""
    import torch

    found: Any = torch.ops
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _on_cpu(torch: Any, x: Any) -> Any:
    copy = x.detach().cpu()
    if isinstance(x, torch.nn.Parameter):
        return torch.nn.Parameter(copy, x.requires_grad)
    return copy.requires_grad_() if x.is_leaf and x.requires_grad else copy


def _is_plain(torch: Any, x: Any) -> bool:
    """Whether a tensor is big and nothing but its elements; torch pickles all others itself, with copies."""
    return (
        x.device.type == "cpu"
        and x.layout == torch.strided
        and x.is_leaf
        and x.is_contiguous()
        and not (x.is_quantized or x.is_conj() or x.is_neg())
        and x.numel() * x.element_size() >= APART
        and not vars(x)
        and x._backward_hooks is None
    )


def _tensor(raw: Any, dtype: Any, shape: Any, requires_grad: bool) -> Any:
    import torch

    flat = torch.frombuffer(bytearray(raw) if isinstance(raw, bytes) else raw, dtype=torch.uint8)
    return flat.view(dtype).reshape(shape).requires_grad_(requires_grad)


def dumps(value: Any) -> bytes:
    """Pickle a value; what the receiving process cannot import travels by value."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


loads = pickle.loads


# a pickled value: the pickle, and its big buffers, which become the value's memory; or a plain value itself
Packed: TypeAlias = tuple[Any, list[Any]] | int | float | None


def pack(value: Any) -> Packed:
    """Pickle a value for a message, its big buffers apart; raises what pickling raises."""
    if type(value) in (types.NoneType, bool, int, float):
        return value
    buffer, apart = io.BytesIO(), list[pickle.PickleBuffer]()

    def stays(memory: pickle.PickleBuffer) -> bool:
        if big := memory.raw().nbytes >= APART:
            apart.append(memory)
        return not big

    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=stays).dump(value)
    return pickle.PickleBuffer(buffer.getbuffer()) if buffer.tell() >= APART else buffer.getvalue(), apart


def unpack(packed: Packed) -> Any:
    """Return the value of a `Packed`, once only."""
    return pickle.loads(packed[0], buffers=packed[1]) if isinstance(packed, tuple) else packed


def frame(message: Any) -> list[Any]:
    """Return a message as the byte strings to send, so that one pickle serves every rank."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    if not buffers and len(body) < CHUNK:  # whole: a header of its own would wake the receiver twice
        return [PREFIX.pack(len(body), 0) + body]
    apart = [buffer.raw() for buffer in buffers]
    sizes = b"".join([SIZE.pack(memory.nbytes) for memory in apart])
    return [PREFIX.pack(len(sizes) + len(body), len(apart)) + sizes, body, *apart]


def _cut(messages: list[Any]) -> Generator[memoryview, int, None]:
    """Yield memory for what is received next, and be sent how much has come; put whole messages into `messages`."""
    kept, start, end = memoryview(bytearray(APART)), 0, 0  # of no message yet: kept[start:end]

    def fill(size: int) -> Generator[memoryview, int, memoryview]:
        nonlocal start
        room, got = _room(size), min(size, end - start)
        room[:got] = kept[start : start + got]
        start += got
        while got < size:
            got += yield room[got : got + CHUNK]
        return room

    while True:
        if start < end:
            kept[: end - start] = kept[start:end]
        start, end = 0, end - start
        while end < PREFIX.size:
            end += yield kept[end:]
        size, count = PREFIX.unpack_from(kept)
        start = PREFIX.size
        if size <= end - start:  # a small message, all of which has come
            body = kept[start : start + size]
            start += size
        else:
            body = yield from fill(size)
        buffers = []
        for i in range(count):
            buffers.append((yield from fill(*SIZE.unpack_from(body, i * SIZE.size))))
        messages.append(pickle.loads(body[SIZE.size * count :], buffers=buffers))


def _room(size: int) -> memoryview:
    """Writable memory; much of it is not filled with zeros first."""
    return memoryview(bytearray(size) if size < CHUNK else mmap.mmap(-1, size))


def send(sock: socket.socket, message: Any) -> None:
    """Send one message on a blocking socket."""
    for part in frame(message):
        sock.sendall(part)


class Inbox:
    """Receives messages from a socket."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.messages: list[Any] = []
        self._cutter = _cut(self.messages)
        self._room = next(self._cutter)

    def read(self) -> bool:
        """Receive what has come, with one call of the system; False if the other side is gone."""
        n = self.sock.recv_into(self._room)
        if n:
            self._room = self._cutter.send(n)
        return bool(n)

    def receive(self) -> Any:
        """Wait for a message on a blocking socket.

        Raises:
            EOFError: If the other side is gone.
        """
        while not self.messages:
            if not self.read():
                raise EOFError("the other side closed the connection")
        return self.messages.pop(0)


class Channel(Inbox):
    """The kernel's end of a socket, which never blocks, so that one loop can serve every rank."""

    def __init__(self, sock: socket.socket):
        super().__init__(sock)
        sock.setblocking(False)
        self.queued: deque[memoryview] = deque()
        self._closed = False

    def fileno(self) -> int:
        return self.sock.fileno()

    def post(self, parts: list[Any]) -> None:
        """Queue framed bytes (see `frame`), shared between ranks without a copy, and send what fits now."""
        self.queued.extend(map(memoryview, parts))
        self.flush()

    def flush(self) -> None:
        """Send what fits of the queued bytes."""
        queued = self.queued
        try:
            while queued:
                part = queued.popleft()
                if (sent := self.sock.send(part[:CHUNK])) < len(part):
                    queued.appendleft(part[sent:])
        except BlockingIOError:
            queued.appendleft(part)
        except OSError:  # the rank is gone: its death is reported by poll()
            queued.clear()

    def poll(self) -> list[Any]:
        """Return the messages that are complete; the socket stays readable where further ones have come.

        Raises:
            EOFError: If the other side is gone and nothing is left to read.
        """
        while not (self._closed or self.messages):  # one try more would find nothing, as a rule
            try:
                self._closed = not self.read()
            except BlockingIOError:
                break
            except OSError:
                self._closed = True
        if self._closed and not self.messages:
            raise EOFError("the rank closed its connection")
        complete = self.messages[:]
        self.messages.clear()
        return complete

    def close(self) -> None:
        """Close the socket; what is queued is dropped."""
        self.queued.clear()
        self.sock.close()
