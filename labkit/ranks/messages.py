"""Messages between two ranks that wait for each other for ever: who sends to whom."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Message", "circle"]

Message = tuple[str, int]  # 'send' or 'recv', and the other rank
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
