"""What is torch's own: breaks and frames given up, by owner, and recompiles that follow those of the program."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from labkit.look.causes import followers
from labkit.look.found import Look
from labkit.look.owners import NOTHING, OWNERS, owner_of
from labkit.records.reasons import libraries_of

__all__ = ["Folded", "folded"]

_LIMIT = "recompile limit"


@dataclass(frozen=True)
class Folded:
    """Breaks of torch's own: whose, what to do, places, executions per step, and frames given up for them.

    Without an owner, functions that are compiled again because the program's own code is: `places` has their names.
    """

    owner: str
    advice: str
    places: tuple[str, ...]
    executed: float
    given_up: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.owner:
            return f"torch's own, {self.advice}: compiled again with the program's functions: {', '.join(self.places)}"
        many = f"{len(self.places)} break{'s' * (len(self.places) != 1)}"
        said = f"torch's own, {self.advice}: {many} of {self.owner} ({self.executed:g} executed in each)"
        return said + (f"; given up for it: {', '.join(self.given_up)}" if self.given_up else "")


def folded(looked: Look) -> list[Folded]:
    """Return torch's own breaks and frames given up, by owner, and last its recompiles that follow others."""
    places: dict[str, set[str]] = {}
    given_up: dict[str, dict[str, None]] = {}
    executed: Counter[str] = Counter()
    rows = looked.whole["breaks"].drop_duplicates(["name", "reason", "place", "text"])
    for row in rows.itertuples():
        if _LIMIT not in row.reason and (owner := owner_of(row.text)):
            places.setdefault(owner, set()).add((libraries_of(row.text) or [row.place])[-1])
            stands = [
                place for place in (row.place, *libraries_of(row.text)) if place.endswith(f"({row.name})")
            ]
            stands = [place for place in stands if not place.startswith("torch/")]
            given_up.setdefault(owner, {}).update(dict.fromkeys(stands[-1:] if row.kind == "skip" else []))
    ran = looked.record.breaks.groupby(["rank", "text"])["executed"].sum().groupby("text").max()
    for text, count in ran.items():
        if owner := owner_of(str(text)):
            executed[owner] += count / max(looked.steps, 1)
    advice = dict(OWNERS.values())
    found = [
        Folded(o, advice[o], tuple(sorted(at)), executed[o], tuple(given_up[o])) for o, at in places.items()
    ]
    again = tuple(followers(looked))
    return [*found, Folded("", NOTHING, again, 0.0)] if again else found
