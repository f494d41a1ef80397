"""Where ranks parted before they hung: the branch that they took otherwise, and the value that they read for it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oddrank.live.failure import Difference, Outcome, differences, name_all
from oddrank.look.choices import Choice

__all__ = ["parted"]

MOST = 4  # groups of ranks that are listed
_ELSEWHERE = ("os.path", "Path", "random")  # reads that torch's random numbers have no part in
_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?: |$)")


def parted(outcomes: Sequence[Outcome]) -> str:
    """Say by which branch ranks came to call different collectives; '' where that is not proved.

    Looked at is what ranks read between the last collective that they called alike and the first that they did not:
    the first branch on which ranks differ of which only one side runs a line that some ranks are at, and not all.

    Args:
        outcomes: How each rank's part ended, with its `choices`.
    """
    found = differences(outcomes)
    if not found:
        return ""
    apart = next((one for one in found if one.only_lines), found[0])  # which came first
    held = {one.rank: one for one in outcomes if one.rank in apart.calls and one.collectives is not None}
    between = {rank: _between(one, apart) for rank, one in held.items()}
    if len(between) < 2 or len(between) < len(apart.calls):
        return ""
    maybe = ""
    for each in zip(*between.values(), strict=False):
        if len({(c.place, c.branch) for c in each}) > 1:
            break
        took, values = {c.took for c in each}, {c.value for c in each}
        if len(took | {None}) > 2 or (None in took and len(values) > 1):
            if _holds(each[0], apart, held):
                said = _said(dict(zip(between, each, strict=True)))
                if None not in took:
                    return said
                maybe = maybe or said
    return maybe


def _between(one: Outcome, apart: Difference) -> list[Choice]:
    call = apart.calls[one.rank]
    until = call.time_ns if call is not None else float("inf")
    before = [c for c in one.collectives or () if c.group == apart.group and c.number < apart.number]
    since = max((c.time_ns for c in before), default=0)
    return [c for c in map(Choice._make, one.choices) if since < c.time_ns < until]


def _holds(one: Choice, apart: Difference, held: dict[int, Outcome]) -> bool:
    """Whether some ranks, and not all, are within lines that only one side of a branch runs."""
    file = one.branch.rpartition(":")[0]
    at = [_numbers(each, apart, file) for each in held.values()]
    inside = ({any(first <= n <= last for n in numbers) for numbers in at} for first, last in one.spans)
    return any(len(each) > 1 for each in inside)


def _numbers(one: Outcome, apart: Difference, file: str) -> list[int]:
    """The lines of a file at which a rank stood, or called what others did not."""
    call = apart.calls[one.rank]
    wheres = [where for where, _, library in one.frames if not library] + ([call.place] if call else [])
    each = [found for where in wheres if (found := _PLACE.match(where)) and found["file"] == file]
    return [int(found["line"]) for found in each]


def _said(by: dict[int, Choice]) -> str:
    one, *_ = every = list(by.values())
    took = _grouped({rank: str(c.took) for rank, c in by.items()})
    said = [f"ranks parted at {one.branch}: `{one.test}` was {took}"]
    if any(c.took is None for c in every):
        said = [f"ranks may have parted at {one.branch}, by `{one.test}`"]
    tested = one.place == one.branch and all(c.value == str(c.took) for c in every)
    if not tested and len({c.value for c in every}) > 1:
        gave = _grouped({rank: c.value for rank, c in by.items()})
        said.append(f"{one.call} at {one.place} gave {gave}")
    if len({c.seed for c in every}) > 1 and not one.call.startswith(_ELSEWHERE):
        seeds = _grouped({rank: str(c.seed) for rank, c in by.items()})
        said.append(f"torch's random numbers have other seeds, too: {seeds}")
    fix = "fix: let one rank decide, and broadcast its value; or reduce it over the ranks before the branch"
    return "\n".join(["; ".join(said), fix])


def _grouped(values: dict[int, str]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    each = [f"{value} on {name_all(who)}" for value, who in list(ranks.items())[:MOST]]
    return ", ".join(each) + (f" and {len(ranks) - MOST} more" if len(ranks) > MOST else "")
