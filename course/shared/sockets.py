"""Which process sent how many bytes to which: the kernel's own counters of the TCP connections between ranks."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping

__all__ = ["SETTLE_S", "Connections", "connections", "sent_between"]

SETTLE_S = 0.02  # a peer's last acknowledgement may follow the end of a collective
# where Linux keeps a connection's sent bytes in tcp_info (include/uapi/linux/tcp.h, tcpi_bytes_sent, since 4.19)
SENT_AT = 200
Address = tuple[str, int]
Connections = dict[tuple[Address, Address], int]


def connections() -> Connections:
    """The bytes that this process has sent so far on each of its TCP connections, by (own, other) address.

    What NCCL moves between GPUs and what `shm` moves through shared memory passes no socket and is not in it. Empty
    where the system keeps no such counters (Linux before 4.19, macOS).

    >>> left, right = socket.create_server(("127.0.0.1", 0)), socket.socket()
    >>> right.connect(left.getsockname()); other, _ = left.accept()
    >>> before = connections(); right.sendall(b"x" * 1000)
    >>> here = (right.getsockname(), right.getpeername())
    >>> connections()[here] - before[here]
    1000
    >>> for s in (left, right, other): s.close()
    """
    found: Connections = {}
    try:
        files = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for name in files:
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
                    continue
                ends = _address(one.getsockname()), _address(one.getpeername())
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # a listening socket has no other end, and a file may be closed while we look
            continue
        if len(info) >= SENT_AT + 8:
            found[ends] = struct.unpack_from("=Q", info, SENT_AT)[0]
    return found


def sent_between(
    before: Mapping[int, Connections], after: Mapping[int, Connections]
) -> dict[tuple[int, int], int]:
    """The bytes that went from rank to rank between two looks; each look is the `connections()` of every rank.

    What a rank sent to someone who is none of these ranks is left out.

    >>> a, b = ("127.0.0.1", 1), ("127.0.0.1", 2)
    >>> sent_between({0: {(a, b): 5}, 1: {(b, a): 0}}, {0: {(a, b): 105}, 1: {(b, a): 7}})
    {(0, 1): 100, (1, 0): 7}
    """
    whose = {ends: rank for rank, mine in after.items() for ends in mine}
    found: dict[tuple[int, int], int] = {}
    for rank, mine in after.items():
        for (here, there), total in mine.items():
            other = whose.get((there, here))
            if other is None or other == rank:
                continue
            sent = total - before.get(rank, {}).get((here, there), 0)
            if sent:
                found[rank, other] = found.get((rank, other), 0) + sent
    return found


def _address(name: tuple) -> Address:
    """Host and port; an IPv4 address in IPv6's clothes is the same address."""
    return str(name[0]).removeprefix("::ffff:"), int(name[1])
