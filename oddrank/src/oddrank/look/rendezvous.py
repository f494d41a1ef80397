"""What torchrun has told this process, and its store, over which the ranks of a launch hand their records to rank 0."""

from __future__ import annotations

import datetime
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Launch", "Post", "launched"]

MEET_S = 120.0  # every process imports torch first
PIECE = 1 << 20  # bytes of a value in the store, which refuses 8 MiB
_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Launch:
    """This process among those that torchrun has started: its rank and machine, and the address of torchrun's store."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    address: str
    port: int
    attempt: int = 0
    hosts_store: bool = False

    @property
    def machines(self) -> int:
        """Number of machines, each with as many ranks as this one."""
        return -(-self.world_size // self.local_world_size)


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


class Post:
    """Texts that the ranks of one launch leave for each other in torchrun's store.

    Args:
        launch: what torchrun has told this process.

    Raises:
        RuntimeError: the store cannot be reached; the message has its address.
    """

    def __init__(self, launch: Launch) -> None:
        import torch.distributed as dist

        try:
            whole = dist.TCPStore(
                launch.address,
                launch.port,
                launch.world_size,
                is_master=launch.hosts_store,
                timeout=datetime.timedelta(seconds=MEET_S),
                wait_for_workers=False,
            )
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(
                f"rank {launch.rank} cannot reach torchrun's store at {launch.address}:{launch.port}: {error}"
            ) from error
        # torchrun counts its attempts: an earlier one's texts are none of this one's
        self._store: Any = dist.PrefixStore(f"oddrank.look/{launch.attempt}", whole)

    def leave(self, name: str, text: str) -> None:
        """Leave a text, in place of an earlier one of this name."""
        packed = zlib.compress(text.encode())
        pieces = [packed[i : i + PIECE] for i in range(0, len(packed), PIECE)]
        turn = int(self._store.add(f"{name}/turn", 1))
        for i, piece in enumerate(pieces):
            self._store.set(f"{name}/{turn}/{i}", piece)
        self._store.set(name, f"{turn} {len(pieces)}")  # last: now it is whole

    def say(self, name: str, text: str) -> None:
        """Leave a line, in one message."""
        self._store.set(name, text)

    def said(self, names: list[str]) -> list[str]:
        """The lines of these names; empty where one of them is not there."""
        if not self._store.check(names):
            return []
        return [line.decode() for line in self._store.multi_get(names)]

    def there(self, name: str) -> bool:
        """Whether there is a text of this name."""
        return bool(self._store.check([name]))

    def first(self, name: str) -> bool:
        """Whether nobody has asked this before."""
        return int(self._store.add(name, 1)) == 1

    def take(self, name: str, wait: float = 0.0) -> str | None:
        """The text of this name; None where it is not there after `wait` seconds."""
        until = time.monotonic() + wait
        while not self.there(name):
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)
        turn, count = self._store.get(name).decode().split()
        return zlib.decompress(
            b"".join(self._store.get(f"{name}/{turn}/{i}") for i in range(int(count)))
        ).decode()
