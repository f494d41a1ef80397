"""What torchrun has told this process, and how its processes find and recognise each other."""

from __future__ import annotations

import datetime
import hmac
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEET_S = 120.0  # every process imports torch first
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 5, "TCP_USER_TIMEOUT": 15_000}
GREETING = 4096  # bytes of the longest greeting

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Launch:
    """This process among those that torchrun has started: its rank and node, and the address of torchrun's store."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    address: str
    port: int
    attempt: int = 0
    hosts_store: bool = False


def launched(environment: Mapping[str, str] | None = None) -> Launch | None:
    """Read what torchrun has told this process in its environment.

    torch/distributed/elastic/agent/server/local_elastic_agent.py sets the variables.

    Args:
        environment: The environment; None for `os.environ`.

    Returns:
        None if torchrun has not started this process.

    Raises:
        ValueError: If a variable is missing, no number, or out of its range.

    >>> env = dict(RANK="1", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK="1")
    >>> launched({**env, "MASTER_ADDR": "a", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x"}).node
    1
    >>> launched({}) is None
    True
    """
    env = os.environ if environment is None else environment
    if "TORCHELASTIC_RUN_ID" not in env:
        return None
    missing = [name for name in _NEEDED if not env.get(name)]
    if missing:
        raise ValueError(
            f"torchrun started this, but {', '.join(missing)} is not set: were variables removed?"
        )
    numbers = {}
    for name in (*_NEEDED[:5], "MASTER_PORT"):
        try:
            numbers[name] = int(env[name])
        except ValueError:
            raise ValueError(f"{name} must be a whole number, got {env[name]!r}") from None
    for name, least, below in (
        ("WORLD_SIZE", 1, None),
        ("LOCAL_WORLD_SIZE", 1, numbers["WORLD_SIZE"] + 1),
        ("RANK", 0, numbers["WORLD_SIZE"]),
        ("LOCAL_RANK", 0, numbers["LOCAL_WORLD_SIZE"]),
        ("GROUP_RANK", 0, numbers["WORLD_SIZE"]),
        ("MASTER_PORT", 1, 1 << 16),
    ):
        if numbers[name] < least or (below is not None and numbers[name] >= below):
            most = "" if below is None else f" and at most {below - 1}"
            raise ValueError(f"{name} must be at least {least}{most}, got {numbers[name]}")
    return Launch(
        rank=numbers["RANK"],
        world_size=numbers["WORLD_SIZE"],
        local_rank=numbers["LOCAL_RANK"],
        local_world_size=numbers["LOCAL_WORLD_SIZE"],
        node=numbers["GROUP_RANK"],
        address=env["MASTER_ADDR"],
        port=numbers["MASTER_PORT"],
        attempt=int(env.get("TORCHELASTIC_RESTART_COUNT") or 0),
        hosts_store=env.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and numbers["RANK"] == 0,
    )


def store(launch: Launch) -> Any:
    """Connect to torchrun's store, under a prefix of labkit's.

    Raises:
        RuntimeError: If it cannot be reached, with its address.
    """
    import torch.distributed as dist

    limit = datetime.timedelta(seconds=MEET_S)
    try:
        whole = dist.TCPStore(
            launch.address,
            launch.port,
            launch.world_size,
            is_master=launch.hosts_store,
            timeout=limit,
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"rank {launch.rank} cannot reach torchrun's store at {launch.address}:{launch.port}: {error}"
        ) from error
    return dist.PrefixStore(f"labkit/{launch.attempt}", whole)


def new_token() -> str:
    """Make a secret for processes that have access to torchrun's store."""
    return secrets.token_hex(16)


def send_greeting(sock: socket.socket, token: str, **about: Any) -> None:
    """Send who connects, in one line of JSON: nothing is unpickled before the token has been compared.

    Args:
        sock: The connection.
        token: The secret of this launch.
        **about: What else to say.
    """
    sock.sendall((json.dumps({"token": token, **about}) + "\n").encode())


def receive_greeting(sock: socket.socket, token: str) -> dict[str, Any] | None:
    """Receive the other side's greeting; None if its token is wrong or it sends nothing within 5 s.

    Args:
        sock: The connection.
        token: The secret of this launch.
    """
    sock.settimeout(5)
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < GREETING:
            byte = sock.recv(1)  # one at a time: what follows the line belongs to the next reader
            if not byte:
                return None
            line += byte
        said = json.loads(line)
        known = isinstance(said, dict) and hmac.compare_digest(str(said.pop("token", "")), token)
    except (OSError, ValueError):
        return None
    sock.settimeout(None)
    return said if known else None


def keep_alive(sock: socket.socket) -> socket.socket:
    """Set a socket to send small messages at once, and to notice within about 15 s a machine that vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


def own_address(towards: str, port: int) -> str:
    """Return the address of this machine by which another one reaches it.

    Args:
        towards: The other machine; if that is this one, its name is returned.
        port: Any port.

    Raises:
        RuntimeError: If there is no route.

    >>> own_address("127.0.0.1", 9)
    '127.0.0.1'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting it sends nothing
        try:
            probe.connect((towards, port))
        except OSError as error:
            raise RuntimeError(
                f"no route from this machine to {towards}: {error.strerror or error}"
            ) from error
        mine = probe.getsockname()[0]
    # a name that its own machine takes for loopback is still the name by which others reach that machine
    return towards if mine.startswith("127.") else mine


def interface(address: str) -> str:
    """Return the network interface that has an IPv4 address, '' if that cannot be told.

    >>> interface("127.0.0.1") in ("lo", "lo0", "")
    True
    """
    try:
        import fcntl
    except ImportError:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:  # SIOCGIFADDR, Linux' number for it
                answer = fcntl.ioctl(probe.fileno(), 0x8915, name.encode()[:15].ljust(40, b"\0"))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
