"""Fingerprints of the shards: weights that nobody may change have not changed, and replicas are still replicas.

Enforces, of topic 12's table "Rank-parity invariants", the row Pipeline identity + weights (the periodic backstop
against drift) and the tripwires of Drift. Shards differ between ranks by right, so a rank compares each with its own
past; what is replicated is also compared between ranks. Copy this file and exchange.py; they need only torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from labkit.contract.exchange import ContractError, Exchange

__all__ = ["FingerprintError", "Fingerprints", "fingerprint"]

CHUNK = 1 << 20  # bytes at a time: the sum is taken in int64, eight times as large
PERIOD = (
    8191  # a prime: two elements that swap places change the sum unless they stand a multiple of it apart
)


class FingerprintError(ContractError):
    """A shard changed where nobody said so, or a replica is none any more."""


def fingerprint(tensor: Any) -> int:
    """A sum of a tensor's bytes weighted by their place, taken on the tensor's own device, exact in int64.

    Every changed byte changes it. It is no cryptographic hash: it is for accidents, and cheap on a GPU.

    >>> import torch
    >>> w = torch.arange(6.0)
    >>> fingerprint(w) == fingerprint(w.clone()), fingerprint(w) == fingerprint(w.flip(0))
    (True, False)
    """
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    if not flat.numel():
        return 0
    bits, total = flat.view(torch.uint8), torch.zeros((), dtype=torch.int64, device=flat.device)
    places = torch.arange(min(CHUNK, bits.numel()), device=flat.device)
    for start in range(0, bits.numel(), CHUNK):
        part = bits[start : start + CHUNK]
        total += (part.to(torch.int64) * ((places[: len(part)] + start) % PERIOD + 1)).sum()
    return int(total)


class Fingerprints:
    """Remember what every tensor is now, and say at each `check` which ones have changed since, on which rank.

    tensors: by name, such as `dict(model.named_parameters())`. replicated: names of those that are the same on every
    rank, which are compared at once. Raises ValueError for a replicated name that is not among the tensors.

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
        """What the check of parity compares."""
        return {"fingerprints": f"{len(self.tensors)} tensors", "replicated": ", ".join(self.replicated)}

    def renew(self) -> None:
        """Take the weights as they are now: after an update that every rank knows of. Raises FingerprintError."""
        self.known = {name: fingerprint(tensor) for name, tensor in self.tensors.items()}
        mine = {name: self.known[name] for name in self.replicated}
        every = self.exchange.gather("fingerprints of replicas", mine)
        other = [n for n in self.replicated if len({found.get(n) for found in every.values()}) > 1]
        if other:
            raise FingerprintError(f"not the same on every rank, though replicated: {', '.join(other)}")

    def check(self) -> None:
        """Compare with what was remembered. Raises FingerprintError on every rank, naming rank and tensors."""
        changed = [name for name, tensor in self.tensors.items() if fingerprint(tensor) != self.known[name]]
        every = self.exchange.gather("fingerprints", changed)
        said = [f"rank {rank}: {', '.join(names)}" for rank, names in every.items() if names]
        if said:
            raise FingerprintError(f"shards changed since they were fingerprinted: {'; '.join(said)}")
