"""Messages between two ranks: those under way in this process, and ranks that wait for each other for ever."""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from oddrank.live.stacks import hide
from oddrank.torch_names import hide_from_dynamo

__all__ = ["Message", "circle", "note_messages", "peer_of", "under_way"]

hide(__file__)

Message = tuple[str, int]  # 'send' or 'recv', and the other rank
BETWEEN = 6  # frames between a message and its batch
KEPT = 256  # messages that may be under way at once; older ones are no longer known


class _Begun(NamedTuple):
    work: weakref.ref[Any]
    name: str
    peer: int | None


# Gloo's messages are not in torch's flight recorder, and the handle that a program waits with does not name the peer.
_begun: deque[_Begun] = deque(maxlen=KEPT)
# called with the messages of a `batch_isend_irecv`, as its first one begins, and the frame that called it
batches: list[Callable[[Any, Any], None]] = []
_PEER = {"send": "dstRank", "recv": "srcRank"}  # torch/csrc/distributed/c10d/init.cpp
_WORDS = {"send": "sends to", "recv": "receives from"}
_WHY = {
    frozenset(["send"]): "none of them receives: let one receive first, or give both messages of a rank to"
    " batch_isend_irecv",
    frozenset(["recv"]): "none of them sends: let one send first",
}
_MIXED = "each waits for the next one: bring the messages into one order, or give those of a rank to batch_isend_irecv"
_MATCHED = "a message and its receiver do not find each other: do their tags or groups differ?"


def circle(waits: Mapping[int, Message]) -> str:
    """Say which ranks wait for each other in messages, and what to do; '' where they do not.

    Args:
        waits: By rank, the message that it waits in.

    >>> circle({0: ("send", 1), 1: ("send", 0)}).partition(":")[0]
    'rank 0 sends to rank 1, rank 1 sends to rank 0; none of them receives'
    >>> circle({0: ("send", 1), 1: ("recv", 2)})
    ''
    """
    for start in sorted(waits):
        path: list[int] = []
        rank = start
        while rank in waits and rank not in path:
            path.append(rank)
            rank = waits[rank][1]
        if rank in path:
            members = path[path.index(rank) :]
            said = ", ".join(f"rank {r} {_WORDS[waits[r][0]]} rank {waits[r][1]}" for r in members)
            kinds = [waits[r][0] for r in members]
            if len(members) == 2 and len(set(kinds)) == 2:
                return f"{said}; {_MATCHED}"
            return f"{said}; {_WHY.get(frozenset(kinds), _MIXED)}"
    return ""


def note_messages() -> None:
    """Note each message of a process group as it begins, for `under_way`; called in a rank before its group exists."""
    import torch.distributed as dist

    for name in ("send", "recv"):
        setattr(dist.ProcessGroup, name, _noted(name, getattr(dist.ProcessGroup, name)))


def _noted(name: str, begin: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(begin)
    def call(group: Any, *given: Any, **named: Any) -> Any:
        if batches:
            _tell_batch(sys._getframe(1))
        work = begin(group, *given, **named)
        if work is not None:  # NCCL has one handle for all messages of a batch
            peer = given[1] if len(given) > 1 else named[_PEER[name]]
            _begun.append(_Begun(weakref.ref(work), name, peer_of(group, peer)))
        return work

    hide_from_dynamo(call.__code__, calls=True)  # type: ignore[attr-defined]
    return call


def _tell_batch(frame: Any) -> None:
    for _ in range(BETWEEN):
        if frame is None or frame.f_code.co_name == "batch_isend_irecv":
            break
        frame = frame.f_back
    else:
        return
    if frame is not None and frame.f_back is not None:
        for listener in batches:
            listener(frame.f_locals["p2p_op_list"], frame.f_back)


def peer_of(group: Any, inside: int) -> int | None:
    """Return the rank in the whole job of a rank of a group; None where the group is being destroyed.

    Args:
        group: The process group.
        inside: The rank's number in it.
    """
    try:
        return int(sys.modules["torch.distributed"].get_global_rank(group, inside))
    except (KeyError, RuntimeError, ValueError):
        return None


def under_way() -> list[Message]:
    """Return the messages that this process has begun and has not waited for: first receives, then sends.

    Of a send that nobody waits for torch does not say whether it has ended.
    """
    held = [(one, one.work()) for one in list(_begun)]
    left = [(one.name, one.peer) for one, work in held if work is not None and not work.is_completed()]
    known = [(name, peer) for name, peer in left if peer is not None]
    return sorted(known, key=lambda message: message[0] != "recv")
