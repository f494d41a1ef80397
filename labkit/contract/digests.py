"""Digests of what a call was given: inputs that should be the same on every rank are, bit by bit.

Enforces, of topic 12's table "Rank-parity invariants", the row Drift tripwires *per call* (on during bring-up, the
cadence settable). Warmup calls, whose index is -1, are left out. Copy this file and exchange.py; they need only torch.
"""

from __future__ import annotations

import hashlib
from typing import Any

from labkit.contract.exchange import ContractError, Exchange

__all__ = ["DigestError", "InputDigests", "digest"]


class DigestError(ContractError):
    """Ranks were given other data under one name."""


def digest(tensor: Any) -> str:
    """Sixteen hexadecimal digits of a tensor's shape, dtype and bits (BLAKE2b); a tensor on a GPU is copied for it.

    >>> import torch
    >>> x = torch.arange(6.0)
    >>> digest(x) == digest(x.clone()), digest(x) == digest(x.reshape(2, 3)), digest(x) == digest(x + 1e-6)
    (True, False, False)
    """
    import torch

    flat = tensor.detach().cpu().contiguous()
    found = hashlib.blake2b(f"{tuple(flat.shape)} {flat.dtype}".encode(), digest_size=8)
    if flat.numel():
        found.update(flat.reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


class InputDigests:
    """Compare the inputs of every `every`-th call between ranks; `every=0` compares none, after bring-up.

    Whether it is on must be the same everywhere: give `settings()` to the check of parity. Raises ValueError for a
    negative cadence.

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
        """What the check of parity compares, so that no rank waits for a digest that another does not send."""
        return {"input digests, every": str(self.every)}

    def due(self, index: int) -> bool:
        """Whether the call of this index is compared; a warmup (index -1) never is."""
        return self.every > 0 and index >= 0 and index % self.every == 0

    def check(self, index: int, /, **tensors: Any) -> bool:
        """Compare this call's tensors where it is due; returns whether it was. Raises DigestError on every rank."""
        if not self.due(index):
            return False
        mine = {name: digest(tensor) for name, tensor in tensors.items()}
        every: dict[int, Any] = self.exchange.gather("input digests", [index, mine])
        calls = {rank: said[0] for rank, said in every.items()}
        if len(set(calls.values())) > 1:
            said = ", ".join(f"rank {rank} call {number}" for rank, number in calls.items())
            raise DigestError(f"the ranks compare the inputs of different calls: {said}")
        found = {rank: said[1] for rank, said in every.items()}
        names = dict.fromkeys(name for by_name in found.values() for name in by_name)
        values = {
            name: {rank: by_name.get(name, "none") for rank, by_name in found.items()} for name in names
        }
        lines = [
            f"    {name}: " + ", ".join(f"rank {rank} {value}" for rank, value in by_rank.items())
            for name, by_rank in values.items()
            if len(set(by_rank.values())) > 1
        ]
        if lines:
            head = f"call {index}: {len(lines)} of {len(values)} inputs differ between ranks:"
            raise DigestError("\n".join([head, *lines]))
        return True
