"""What the other parts stand on: ranks tell each other a value over the store, beside the collectives, with a deadline.

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
    """Values of all ranks of a group, gathered over a c10d store.

    `ranks` is the number of ranks, or the ranks of a part of them (a mesh that leaves rank 0 outside): who is not in
    the list is neither waited for nor asked. `timeout` (seconds) is how long one gather waits for a rank that does
    not come. All ranks make their exchanges in the same order. Raises ValueError for a rank that is not in `ranks`.

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
        """An exchange on a connection of its own, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

        torchrun and `labkit.Ranks` set them. Raises ValueError naming one that is missing.
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
        """Every rank's value by rank; `value` is what JSON can hold, and `what` says in a word what it is.

        Raises Absent naming the ranks that did not come, and ContractError where a rank came with something else or
        has said that it failed.
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
        """Tell peers that wait for this rank, now or at the next gather, that it has failed; waits for nobody."""
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
    """Call `body(exchange)` once for each rank, on threads of this process: a contract tried without any processes.

    Returns by rank what it gave, or the exception that it raised. No process group, so no collectives.

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
    """'0', '0 and 1', '0, 1 and 2'.

    >>> listed([0, 1, 2])
    '0, 1 and 2'
    """
    words = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
