"""An exchange of values between ranks over the store, with a deadline: what the other parts are built on.

A check that is itself a collective can pair with a stray one, or hang with it. The rendezvous store knows keys, not an
order of calls, and a wait there can end. Copy this file with the part that uses it; it needs only torch.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

__all__ = ["Absent", "ContractError", "Exchange", "by_rank", "differences", "listed", "rehearse"]

_made: Counter[tuple[str, int]] = Counter()
_lock = threading.Lock()


class ContractError(RuntimeError):
    """A part of the contract is broken. What is compared is compared everywhere, so every rank raises."""


class Absent(ContractError):
    """A rank did not come to an exchange within its deadline."""


class Exchange:
    """Gathers values of all ranks of a group over a c10d store. All ranks make their exchanges in the same order.

    Args:
        store: A c10d store that all of these ranks reach.
        rank: This rank.
        ranks: The number of ranks, or a list of those that take part. Other ranks are not waited for.
        name: A name that keeps the keys of several exchanges apart.
        timeout: How long one gather waits for a rank that does not come, in seconds.

    Raises:
        ValueError: If `rank` is not in `ranks`, or `timeout` is not positive.

    >>> import torch.distributed as dist
    >>> Exchange(dist.HashStore(), rank=0, ranks=1).gather("colour", "blue")
    {0: 'blue'}
    """

    def __init__(
        self, store: Any, rank: int, ranks: int | Sequence[int], name: str = "contract", timeout: float = 10.0
    ) -> None:
        self.ranks = sorted(range(ranks) if isinstance(ranks, int) else set(ranks))
        if rank not in self.ranks:
            raise ValueError(
                f"rank {rank} is not one of the ranks of exchange {name!r}: {listed(self.ranks)}"
            )
        if not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        self.store, self.rank, self.name, self.timeout = store, rank, name, timeout
        self.number = 0
        with _lock:  # a second exchange of this name must not read what the first one left
            self.life = _made[name, rank]
            _made[name, rank] += 1

    @classmethod
    def connect(
        cls, name: str = "contract", ranks: int | Sequence[int] | None = None, timeout: float = 10.0
    ) -> Exchange:
        """Make an exchange on a connection of its own, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

        torchrun and `labkit.Ranks` set these environment variables. The arguments are those of the class.

        Raises:
            ValueError: If one of them is not set.
        """
        import torch.distributed as dist

        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [key for key in names if not os.environ.get(key)]
        if missing:
            raise ValueError(f"{', '.join(missing)} is not set: start this with torchrun, or give a store")
        rank, size, host, port = (os.environ[key] for key in names)
        store = dist.TCPStore(
            host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout)
        )
        return cls(store, int(rank), int(size) if ranks is None else ranks, name, timeout)

    def gather(self, what: str, value: Any, timeout: float | None = None) -> dict[int, Any]:
        """Gather a value from every rank.

        Args:
            what: What the value is, in a word; the same on every rank.
            value: This rank's value, which JSON can hold.
            timeout: The seconds to wait for the others; the exchange's own where this is None.

        Returns:
            Every rank's value by rank.

        Raises:
            Absent: If ranks did not come in time; it names them.
            ContractError: If a rank came with another `what`, or has said that it failed.
        """
        self.number += 1
        self.store.set(self._key(self.number, self.rank), json.dumps([what, value]))
        found = self._read(what, self.timeout if timeout is None else timeout)
        if self.number > 1:  # whoever came here has read what was before
            self.store.delete_key(self._key(self.number - 1, self.rank))
        other = {rank: said for rank, (said, _) in found.items() if said != what}
        failed = {rank: found[rank][1] for rank, said in other.items() if said == "failed"}
        if failed:
            raise ContractError("; ".join(f"rank {rank} failed: {why}" for rank, why in failed.items()))
        if other:
            said = ", ".join(f"rank {rank} at {word!r}" for rank, (word, _) in sorted(found.items()))
            raise ContractError(f"the ranks are not at the same check, number {self.number}: {said}")
        return {rank: found[rank][1] for rank in self.ranks}

    def fail(self, why: str) -> None:
        """Tell the other ranks at their next gather that this rank has failed and why, without waiting for them."""
        self.number += 1
        self.store.set(self._key(self.number, self.rank), json.dumps(["failed", why]))

    def _read(self, what: str, timeout: float) -> dict[int, tuple[str, Any]]:
        keys = {rank: self._key(self.number, rank) for rank in self.ranks}
        try:
            self.store.wait(list(keys.values()), timedelta(seconds=timeout))
        except RuntimeError as error:  # a deadline, or the store itself is gone
            absent = self._absent(keys)
            who = f"rank{'s' * (len(absent) > 1)} {listed(absent)}" if absent else "the store"
            raise Absent(f"{who} did not come to {what!r} within {timeout:g} s") from error
        return {rank: tuple(json.loads(self.store.get(key))) for rank, key in keys.items()}

    def _absent(self, keys: dict[int, str]) -> list[int]:
        try:
            return [rank for rank, key in keys.items() if not self.store.check([key])]
        except RuntimeError:
            return []

    def _key(self, number: int, rank: int) -> str:
        return f"{self.name}/{self.life}/{number}/{rank}"


def rehearse(world_size: int, body: Callable[[Exchange], Any], timeout: float = 10.0) -> list[Any]:
    """Try a contract without processes: call `body(exchange)` once for each rank, on threads of this process.

    There is no process group, so there are no collectives.

    Args:
        world_size: The number of ranks.
        body: The function to call with each rank's exchange.
        timeout: The deadline of each gather, in seconds.

    Returns:
        By rank what `body` returned, or the exception that it raised.

    >>> rehearse(2, lambda exchange: exchange.gather("rank", exchange.rank * 10))
    [{0: 0, 1: 10}, {0: 0, 1: 10}]
    """
    import torch.distributed as dist

    store = dist.HashStore()
    with _lock:
        name = f"rehearsal-{_made['rehearsal', -1]}"
        _made["rehearsal", -1] += 1
    found: list[Any] = [None] * world_size

    def play(rank: int) -> None:
        try:
            found[rank] = body(Exchange(store, rank, world_size, name, timeout))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=play, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def differences(every: Mapping[int, Mapping[str, Any]], absent: str = "none") -> dict[str, dict[int, str]]:
    """Find the values that are not the same on all ranks.

    Args:
        every: Each rank's values by name.
        absent: What stands for a value that a rank does not have.

    Returns:
        For each name that differs, every rank's value as text.

    >>> differences({0: {"a": 1, "b": 2}, 1: {"a": 1}})
    {'b': {0: '2', 1: 'none'}}
    """
    names = dict.fromkeys(name for found in every.values() for name in found)
    values = {name: {rank: str(found.get(name, absent)) for rank, found in every.items()} for name in names}
    return {name: found for name, found in values.items() if len(set(found.values())) > 1}


def by_rank(values: Mapping[int, Any]) -> str:
    """Write each rank's value in a line.

    >>> by_rank({0: "on", 1: "off"})
    'rank 0 on, rank 1 off'
    """
    return ", ".join(f"rank {rank} {value}" for rank, value in values.items())


def listed(items: Sequence[Any]) -> str:
    """Write items as a list in words.

    >>> listed([0, 1, 2])
    '0, 1 and 2'
    """
    words = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
