"""Messages between the kernel and the ranks: framed pickles over sockets.

A message is a length, a pickle, and the big buffers that the pickle leaves out (pickle protocol 5). So a tensor of 1 GB
is sent from its own memory, and received into the memory that it keeps.
"""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import socket
import struct
import sys
import types
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import cloudpickle

HEADER = struct.Struct("!Q")
IMPORTED = -1  # in an answer, in place of the number of a call: the rank has imported what it still lacked
STARTING = 0  # in an answer, in place of the number of a call: the rank has started, or why it could not
CHUNK = 1 << 20
APART = 1 << 16  # buffers of this many bytes travel outside the pickle


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, but CUDA tensors travel as CPU tensors: a result must not make a CUDA context in the kernel."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj:
            # cloudpickle does so for plain modules only, and torch.ops is one of a kind of its own
            if type(obj) is not types.ModuleType:
                return importlib.import_module, (obj.__name__,)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            if obj.is_cuda:
                return _on_cpu(torch, obj).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            if type(obj) is torch.Tensor and _is_plain(torch, obj):
                raw = obj.detach().reshape(-1).view(torch.uint8).numpy()
                return _tensor, (pickle.PickleBuffer(raw), obj.dtype, obj.shape, obj.requires_grad)
        return super().reducer_override(obj)


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


@dataclass
class Packed:
    """A pickled value with its big buffers apart; unpack it once only, since its buffers become the value's memory."""

    body: Any
    buffers: list[Any]

    def __reduce__(self) -> Any:
        body = pickle.PickleBuffer(self.body) if len(self.body) >= APART else self.body
        return Packed, (body, [pickle.PickleBuffer(b) for b in self.buffers])

    def unpack(self) -> Any:
        """Return the value."""
        return pickle.loads(self.body, buffers=self.buffers)


def pack(value: Any) -> Packed:
    """Pickle a value for a message, its big buffers apart; raises what pickling raises."""
    if value is None or type(value) in (bool, int, float):
        return Packed(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), [])
    buffer, apart = io.BytesIO(), list[memoryview]()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=_big_into(apart)).dump(value)
    return Packed(buffer.getbuffer() if buffer.tell() >= APART else buffer.getvalue(), apart)


def _big_into(apart: list[memoryview]) -> Callable[[pickle.PickleBuffer], bool]:
    """Return what a pickler asks whether a buffer stays in the pickle; big ones are put into `apart`."""

    def stays(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= APART:
            apart.append(raw)
        return raw.nbytes < APART

    return stays


def frame(message: Any) -> list[Any]:
    """Return a message as the byte strings to send, so that one pickle serves every rank."""
    apart: list[memoryview] = []
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=_big_into(apart))
    sizes = [b.nbytes for b in apart]
    meta = struct.pack(f"!{len(sizes) + 1}Q", len(sizes), *sizes)
    head = HEADER.pack(len(meta) + len(body)) + meta
    # a small message goes out whole: a header of its own would wake the receiver twice
    return [head + body, *apart] if len(body) < CHUNK else [head, body, *apart]


def _messages(ready: list[Any]) -> Generator[memoryview, None, None]:
    """Yield, one after the other, the memory that the next bytes belong in; whole messages are put into `ready`."""
    while True:
        head = bytearray(HEADER.size)
        yield memoryview(head)
        body = _room(HEADER.unpack(head)[0])
        yield body
        (count,) = HEADER.unpack_from(body)
        start = HEADER.size * (count + 1)
        buffers = []
        for size in struct.unpack_from(f"!{count}Q", body, HEADER.size):
            buffers.append(_room(size))
            yield buffers[-1]
        ready.append(pickle.loads(body[start:], buffers=buffers))


def _room(size: int) -> memoryview:
    """Writable memory; much of it is not filled with zeros first."""
    return memoryview(bytearray(size) if size < CHUNK else mmap.mmap(-1, size))


def send(sock: socket.socket, message: Any) -> None:
    """Send one message on a blocking socket.

    Args:
        sock: The socket.
        message: What can be pickled.
    """
    for part in frame(message):
        sock.sendall(part)


def receive(sock: socket.socket) -> Any:
    """Receive one message from a blocking socket.

    Raises:
        EOFError: If the other side is gone.
    """
    ready: list[Any] = []
    for view in _messages(ready):
        if ready:
            break
        got = 0
        while got < len(view):
            n = sock.recv_into(view[got:], min(len(view) - got, CHUNK))
            if not n:
                raise EOFError("the other side closed the connection")
            got += n
    return ready[0]


class Channel:
    """The kernel's end of a socket, which never blocks, so that one loop can serve every rank."""

    def __init__(self, sock: socket.socket):
        sock.setblocking(False)
        self.sock = sock
        self._out: deque[memoryview] = deque()
        self._ready: list[Any] = []
        self._reader = _messages(self._ready)
        self._room, self._got = next(self._reader), 0
        self._closed = False

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether queued bytes wait to be sent."""
        return bool(self._out)

    def post(self, parts: list[Any]) -> None:
        """Queue framed bytes (see `frame`), shared between ranks without a copy, and send what fits now."""
        self._out.extend(memoryview(part) for part in parts)
        self.flush()

    def flush(self) -> None:
        """Send what fits of the queued bytes."""
        try:
            while self._out:
                sent = self.sock.send(self._out[0][:CHUNK])
                self._out[0] = self._out[0][sent:]
                if not self._out[0]:
                    self._out.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the rank is gone: its death is reported by poll()
            self._out.clear()

    def poll(self) -> list[Any]:
        """Return the messages that are complete; the socket stays readable where further ones have come.

        Raises:
            EOFError: If the other side is gone and nothing is left to read.
        """
        while not (self._closed or self._ready):  # one try more would find nothing, as a rule
            try:
                n = self.sock.recv_into(self._room[self._got :], min(len(self._room) - self._got, CHUNK))
            except BlockingIOError:
                break
            except OSError:
                n = 0
            self._closed = not n
            self._got += n
            if self._got == len(self._room):
                self._room, self._got = next(self._reader), 0
        messages = self._ready[:]
        self._ready.clear()
        if self._closed and not messages:
            raise EOFError("the rank closed its connection")
        return messages

    def close(self) -> None:
        """Close the socket; what is queued is dropped."""
        self._out.clear()
        self.sock.close()


def listening_socket(port: int = 0, host: str = "127.0.0.1") -> socket.socket:
    """Bind the listening socket of the rendezvous store here, so that no other process can take its port.

    Args:
        port: The port; 0 for any free one.
        host: The address.

    Raises:
        ValueError: If the port cannot be used.
    """
    try:
        return socket.create_server((host, port), backlog=128)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise ValueError(f"port {port} cannot be used for the rendezvous store: {reason}") from error
