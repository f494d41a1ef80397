"""How a program ended on ranks, in the words that drills use."""

from __future__ import annotations

from labkit.ranks import RankError

__all__ = ["judge"]

# what an error says that names a difference between ranks: our own, and the one of the collective check
CAUGHT = ("ContractError", "Diverged", "WrongGroup")


def judge(error: RankError) -> tuple[str, str]:
    """How a call that failed ended, and the line that says most."""
    first = error.outcomes[0]
    own = next((o for o in error.outcomes if o.type in CAUGHT), None)
    if own is not None:
        return "caught", f"{own.type}: {own.message}"
    if error.ended == "stalled":
        waits = [f"rank {o.rank} in {o.waits}" for o in error.outcomes if o.waits]
        return "hung", ", ".join(sorted(waits)) or error.headline
    if first.kind == "dead":
        return "crash", first.describe().splitlines()[0].removesuffix(", here:")
    if first.kind == "unfinished":
        return "hung", error.headline
    said = first.message.strip().splitlines()
    return "error", f"{first.type}: {said[0] if said else ''}"
