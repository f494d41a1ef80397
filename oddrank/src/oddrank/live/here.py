"""What a process knows of itself as a rank, and how its work has failed where it has yet to say so."""

from __future__ import annotations

from dataclasses import dataclass

from oddrank.live.failure import Outcome

__all__ = ["Here", "declare", "failing", "failure", "here"]


@dataclass(frozen=True)
class Here:
    """What code that runs on a rank can know of it.

    Attributes:
        rank: Its number.
        world_size: Number of ranks.
        device: Such as 'cpu' or 'cuda:0'.
        backend: The backend of its process group.
        label: The run label of its results, such as 'gloo · cpu'.

    >>> Here(0, 2, "cpu", "gloo", "gloo · cpu").rank
    0
    """

    rank: int
    world_size: int
    device: str
    backend: str
    label: str


_here: Here | None = None
_failure: Outcome | None = None


def here() -> Here:
    """Return the rank that this code runs on.

    Raises:
        RuntimeError: Outside a rank.
    """
    if _here is None:
        raise RuntimeError(
            "here() has an answer only inside a rank: call it in a function given to Ranks.run"
        )
    return _here


def declare(here: Here) -> None:
    """Declare this process a rank."""
    global _here
    _here = here


def failing(error: BaseException) -> None:
    """Note that the call on this rank fails by this exception, before the work that comes until it leaves the call.

    Where another rank fails meanwhile, the ranks are ended before this one has answered; its exception is known then.
    """
    global _failure
    if _here is not None:
        _failure = Outcome.of(_here.rank, error)


def failure() -> Outcome | None:
    """How the work on this rank has failed, as `failing` noted it."""
    return _failure


def forget() -> None:
    """Forget what `failing` noted: new work begins."""
    global _failure
    _failure = None
