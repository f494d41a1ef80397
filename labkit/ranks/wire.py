"""Messages between the kernel, the zygote and the ranks: framed pickles over unix sockets."""

from __future__ import annotations

import array
import io
import os
import pickle
import socket
import struct
import sys
from collections import deque
from typing import Any

import cloudpickle

HEADER = struct.Struct("!Q")
CHUNK = 1 << 20


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, but CUDA tensors travel as CPU tensors: a result must not make a CUDA context in the kernel."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor) and obj.is_cuda:
            return obj.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def dumps(value: Any) -> bytes:
    """Pickle by value whatever the receiving process cannot import."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


loads = pickle.loads


def frame(message: Any) -> list[bytes]:
    """A message as the byte strings to send, so that one pickle serves every rank."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    head = HEADER.pack(len(body))
    # a small message goes out whole: a header of its own would wake the receiver twice
    return [head + body] if len(body) < CHUNK else [head, body]


def send(sock: socket.socket, message: Any) -> None:
    """Send one message on a blocking socket."""
    for part in frame(message):
        sock.sendall(part)


def receive(sock: socket.socket) -> Any:
    """Receive one message from a blocking socket; raises EOFError when the other side is gone."""
    (size,) = HEADER.unpack(_exactly(sock, HEADER.size))
    return pickle.loads(_exactly(sock, size))


def _exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        n = sock.recv_into(view[got:], min(size - got, CHUNK))
        if not n:
            raise EOFError("the other side closed the connection")
        got += n
    return data


class Channel:
    """The kernel's end of a socket: never blocks, so that one loop can serve every rank.

    `flush()` writes what it can of the queued messages; `poll()` returns the messages that are complete
    and raises EOFError once the other side is gone and nothing is left to read.
    """

    def __init__(self, sock: socket.socket):
        sock.setblocking(False)
        self.sock = sock
        self._out: deque[memoryview] = deque()
        self._head = bytearray()
        self._body: bytearray | None = None
        self._got = 0
        self._closed = False

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    def post(self, parts: list[bytes]) -> None:
        """Queue framed bytes (see `frame`), shared between ranks without a copy, and send what fits now."""
        self._out.extend(memoryview(part) for part in parts)
        self.flush()

    def flush(self) -> None:
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
        messages: list[Any] = []
        while not self._closed:
            try:
                if self._body is None:
                    data = self.sock.recv(HEADER.size - len(self._head))
                    self._closed = not data
                    self._head += data
                    if len(self._head) == HEADER.size:
                        self._body, self._got = bytearray(HEADER.unpack(self._head)[0]), 0
                        self._head.clear()
                else:
                    n = self.sock.recv_into(
                        memoryview(self._body)[self._got :], min(len(self._body) - self._got, CHUNK)
                    )
                    self._closed = not n
                    self._got += n
                    if self._got == len(self._body):
                        messages.append(pickle.loads(self._body))
                        self._body = None
            except BlockingIOError:
                break
            except OSError:
                self._closed = True
        if self._closed and not messages:
            raise EOFError("the rank closed its connection")
        return messages

    def close(self) -> None:
        self._out.clear()
        self.sock.close()


def send_fds(sock: socket.socket, message: bytes, fds: list[int]) -> None:
    """Send a small message with open files over a SOCK_SEQPACKET socket."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([message], rights)


def listening_socket(port: int = 0) -> socket.socket:
    """A bound, listening loopback socket for the rendezvous store: bound here, so that no port can be lost in between.

    Raises ValueError naming the port when it is taken.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(128)
    except (OSError, OverflowError) as error:
        sock.close()
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise ValueError(f"port {port} cannot be used for the rendezvous store: {reason}") from error
    return sock
