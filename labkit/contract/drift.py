"""Tripwires against drift: digests of a call's inputs, and fingerprints of weights that nobody may change.

Enforces, of topic 12's table "Rank-parity invariants", the row Drift tripwires (digests on during bring-up, their
cadence settable) and of Pipeline identity + weights the periodic backstop against drift. Warmup calls, whose index is
-1, are left out. Shards differ between ranks by right, so a rank compares each with its own past; what is replicated is
also compared between ranks. Copy this file and exchange.py; they need only torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from labkit.contract.exchange import ContractError, Exchange, by_rank, differences

__all__ = ["DigestError", "FingerprintError", "Fingerprints", "InputDigests", "digest", "fingerprint"]

CHUNK = 1 << 20  # bytes at a time: the sum is taken in int64, eight times as large
PERIOD = (
    8191  # a prime: two elements that swap places change the sum unless they stand a multiple of it apart
)


class DigestError(ContractError):
    """Ranks were given different data under the same name."""


def digest(tensor: Any) -> str:
    """Hash a tensor's shape, dtype and bits to sixteen hexadecimal digits (BLAKE2b). A GPU tensor is copied to the CPU.

    >>> import torch
    >>> x = torch.arange(6.0)
    >>> digest(x) == digest(x.clone()), digest(x) == digest(x.reshape(2, 3)), digest(x) == digest(x + 1e-6)
    (True, False, False)
    """
    import torch

    flat = tensor.detach().cpu().resolve_conj().contiguous()
    found = hashlib.blake2b(f"{tuple(flat.shape)} {flat.dtype}".encode(), digest_size=8)
    if flat.numel():
        found.update(flat.reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


class InputDigests:
    """Checks that call inputs match bit for bit across ranks.

    Whether it is on must be the same everywhere: give `settings()` to the check of parity.

    Args:
        exchange: How the ranks tell each other values.
        every: Compare the inputs of every so many calls; 0 compares none, as after bring-up.

    Raises:
        ValueError: If `every` is negative.

    >>> import torch
    >>> from labkit.contract.exchange import rehearse
    >>> def call(exchange):
    ...     InputDigests(exchange).check(0, x=torch.ones(2) + exchange.rank)
    >>> str(rehearse(2, call)[0]).splitlines()[0]
    'call 0: 1 of 1 inputs differ between ranks:'
    """

    def __init__(self, exchange: Exchange, every: int = 1) -> None:
        if every < 0:
            raise ValueError(f"every must be 0 (off) or a number of calls, got {every}")
        self.exchange, self.every = exchange, every

    def settings(self) -> dict[str, str]:
        """Return what the check of parity compares, so that no rank waits for a digest that another does not send."""
        return {"input digests, every": str(self.every)}

    def due(self, index: int) -> bool:
        """Whether the call of this index is compared; a warmup (index -1) never is."""
        return self.every > 0 and index >= 0 and index % self.every == 0

    def check(self, index: int, /, **tensors: Any) -> bool:
        """Compare this call's tensors across ranks, where the call is due.

        Args:
            index: The number of the call, the same on every rank; -1 for a warmup.
            tensors: The call's inputs by name.

        Returns:
            Whether the call was due.

        Raises:
            DigestError: On every rank, naming the inputs that differ.
        """
        if not self.due(index):
            return False
        mine = {name: digest(tensor) for name, tensor in tensors.items()}
        every: dict[int, Any] = self.exchange.gather("input digests", [index, mine])
        calls = {rank: said[0] for rank, said in every.items()}
        if len(set(calls.values())) > 1:
            said = by_rank({rank: f"call {number}" for rank, number in calls.items()})
            raise DigestError(f"the ranks compare the inputs of different calls: {said}")
        found = {rank: said[1] for rank, said in every.items()}
        differs = differences(found)
        if differs:
            count = len({name for mine in found.values() for name in mine})
            lines = [f"    {name}: {by_rank(values)}" for name, values in differs.items()]
            head = f"call {index}: {len(differs)} of {count} inputs differ between ranks:"
            raise DigestError("\n".join([head, *lines]))
        return True


class FingerprintError(ContractError):
    """A weight changed that nobody may change, or a replica differs from its copies."""


def fingerprint(tensor: Any) -> int:
    """Sum up a tensor's bytes weighted by their position, on the tensor's own device, exactly in int64.

    Every changed byte changes it. It is no cryptographic hash: it is for accidents, and cheap on a GPU.

    >>> import torch
    >>> w = torch.arange(6.0)
    >>> fingerprint(w) == fingerprint(w.clone()), fingerprint(w) == fingerprint(w.flip(0))
    (True, False)
    """
    import torch

    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    if not flat.numel():
        return 0
    bits, total = flat.view(torch.uint8), torch.zeros((), dtype=torch.int64, device=flat.device)
    places = torch.arange(min(CHUNK, bits.numel()), device=flat.device)
    for start in range(0, bits.numel(), CHUNK):
        part = bits[start : start + CHUNK]
        total += (part.to(torch.int64) * ((places[: len(part)] + start) % PERIOD + 1)).sum()
    return int(total)


class Fingerprints:
    """Remembers what each tensor is now; `check` then reports which ones have changed since, and on which rank.

    Args:
        exchange: How the ranks tell each other values.
        tensors: The tensors by name, such as `dict(model.named_parameters())`.
        replicated: Names of those that are the same on every rank; they are compared between ranks at once.

    Raises:
        ValueError: If a replicated name is not among the tensors.
        FingerprintError: If a replicated tensor differs between ranks.

    >>> import torch
    >>> from labkit.contract.exchange import rehearse
    >>> def drift(exchange):
    ...     weights = {"w": torch.ones(4) * exchange.rank}
    ...     watched = Fingerprints(exchange, weights)
    ...     weights["w"][0] += exchange.rank
    ...     watched.check()
    >>> print(rehearse(2, drift)[0])
    shards changed since they were fingerprinted: rank 1: w
    """

    def __init__(
        self, exchange: Exchange, tensors: Mapping[str, Any], replicated: Iterable[str] = ()
    ) -> None:
        self.exchange, self.tensors, self.replicated = exchange, dict(tensors), list(replicated)
        missing = [name for name in self.replicated if name not in self.tensors]
        if missing:
            raise ValueError(f"replicated names that are no tensors here: {', '.join(missing)}")
        self.known: dict[str, int] = {}
        self.renew()

    def settings(self) -> dict[str, str]:
        """Return what the check of parity compares."""
        return {"fingerprints": f"{len(self.tensors)} tensors", "replicated": ", ".join(self.replicated)}

    def renew(self) -> None:
        """Remember the tensors as they are now, after an update that every rank knows of.

        Raises:
            FingerprintError: If a replicated tensor differs between ranks.
        """
        self.known = {name: fingerprint(tensor) for name, tensor in self.tensors.items()}
        mine = {name: self.known[name] for name in self.replicated}
        every = self.exchange.gather("fingerprints of replicas", mine)
        other = [n for n in self.replicated if len({found.get(n) for found in every.values()}) > 1]
        if other:
            raise FingerprintError(f"not the same on every rank, though replicated: {', '.join(other)}")

    def check(self) -> None:
        """Compare the tensors with what was remembered.

        Raises:
            FingerprintError: On every rank, naming the tensors that changed by rank.
        """
        changed = [name for name, tensor in self.tensors.items() if fingerprint(tensor) != self.known[name]]
        every = self.exchange.gather("fingerprints", changed)
        said = [f"rank {rank}: {', '.join(names)}" for rank, names in every.items() if names]
        if said:
            raise FingerprintError(f"shards changed since they were fingerprinted: {'; '.join(said)}")
