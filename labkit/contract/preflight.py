"""Messages that are validated before they are sent: what cannot be sent fails on the sender, while no peer waits.

Enforces, of topic 12's code-review contract, "validate before committing peers to blocking" (anti-stranding): the
header of a call goes out only when all that follows it exists in a form that can be sent. Copy this file; it needs
only torch.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Packed", "PreflightError", "preflight", "receive", "send"]

MOST = 1 << 30  # bytes of metadata: more is a mistake


class PreflightError(ValueError):
    """Something cannot be sent; no peer has heard of it."""


@dataclass(frozen=True)
class Packed:
    """A message that is ready to go: its metadata as bytes, and tensors that are contiguous."""

    body: bytes
    tensors: tuple[Any, ...]


def preflight(
    meta: Mapping[str, Any], tensors: Mapping[str, Any] | None = None, device: Any = None
) -> Packed:
    """Make a message out of metadata and tensors, without any communication.

    Args:
        meta: The metadata by name, which can be pickled.
        tensors: Dense tensors by name, all on one device.
        device: The device they have to be on; that of the first tensor where this is None.

    Returns:
        The message for `send`.

    Raises:
        PreflightError: For metadata that cannot be pickled, something that is no tensor, a sparse tensor, or one on
            another device; it names the item.

    >>> preflight({"prompt": lambda: 1})
    Traceback (most recent call last):
    labkit.contract.preflight.PreflightError: meta 'prompt' (function) cannot be pickled...
    """
    import torch

    given = dict(tensors or {})
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor):
            raise PreflightError(f"tensor {name!r} is a {type(tensor).__name__}, not a torch.Tensor")
        if tensor.layout is not torch.strided:
            raise PreflightError(f"tensor {name!r} is {tensor.layout}: only dense tensors can be sent")
        first = next(iter(given.values())).device if device is None else torch.device(device)
        if tensor.device.type != first.type:
            raise PreflightError(f"tensor {name!r} is on {tensor.device}, and {first} was expected")
    kinds = {name: (tuple(t.shape), t.dtype) for name, t in given.items()}
    try:
        body = pickle.dumps((dict(meta), kinds))
    except Exception as error:
        raise PreflightError(f"{_culprit(meta)} cannot be pickled: {error}") from error
    if len(body) > MOST:
        raise PreflightError(f"the metadata takes {len(body)} bytes, more than {MOST}")
    return Packed(body, tuple(tensor.detach().contiguous() for tensor in given.values()))


def send(packed: Packed, group: Any = None) -> None:
    """Broadcast a message from this rank to its group: a header, the metadata, then each tensor.

    Every other rank of the group calls `receive`. What the collectives raise passes through.
    """
    import torch
    import torch.distributed as dist

    me, device = dist.get_rank(), packed.tensors[0].device if packed.tensors else torch.device("cpu")
    header = torch.tensor([len(packed.body)], device=device)
    dist.broadcast(header, me, group=group)
    dist.broadcast(torch.frombuffer(bytearray(packed.body), dtype=torch.uint8).to(device), me, group=group)
    for tensor in packed.tensors:
        dist.broadcast(tensor, me, group=group)


def receive(source: int = 0, group: Any = None, device: Any = "cpu") -> tuple[dict[str, Any], dict[str, Any]]:
    """Receive the message that rank `source` sends. It is unpickled, so this is only for ranks of one job.

    Returns:
        The metadata, and the tensors by name.
    """
    import torch
    import torch.distributed as dist

    header = torch.zeros(1, dtype=torch.int64, device=device)
    dist.broadcast(header, source, group=group)
    body = torch.zeros(int(header), dtype=torch.uint8, device=device)
    dist.broadcast(body, source, group=group)
    meta, kinds = pickle.loads(body.cpu().numpy().tobytes())
    tensors = {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in kinds.items()}
    for tensor in tensors.values():
        dist.broadcast(tensor, source, group=group)
    return meta, tensors


def _culprit(meta: Mapping[str, Any]) -> str:
    for name, value in meta.items():
        try:
            pickle.dumps(value)
        except Exception:
            return f"meta {name!r} ({type(value).__name__})"
    return "the metadata"
