"""What is torch's own: breaks and frames given up, by owner, and recompiles that follow those of the program."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from oddrank.look.breaks import LIMIT, breaks_of
from oddrank.look.causes import followers
from oddrank.look.look import Look
from oddrank.look.owners import NOTHING, OWNERS, owner_of

__all__ = ["Folded", "folded"]


@dataclass(frozen=True)
class Folded:
    """Breaks of torch's own: whose, what to do, places, executions of all per step, and frames given up for them.

    Without an owner, functions that are compiled again because the program's own code is: `places` has their names.
    """

    owner: str
    advice: str
    places: tuple[str, ...]
    executed: float
    unit: str
    given_up: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.owner:
            places = ", ".join(self.places)
            return f"torch's own, {self.advice}: compiled again because the program's functions are: {places}"
        many = f"{len(self.places) or 'no'} break{'s' * (len(self.places) != 1)}"
        often = f"executed {round(self.executed, 2):g}× a {self.unit}" if self.executed else "not executed"
        said = f"torch's own, {self.advice}: {many} of {self.owner}{f', {often}' if self.places else ''}"
        return said + (f"; given up for it: {', '.join(self.given_up)}" if self.given_up else "")


def folded(looked: Look) -> list[Folded]:
    """Return torch's own breaks and frames given up, by owner, and last its recompiles that follow others."""
    places: dict[str, set[str]] = {}
    given_up: dict[str, dict[str, None]] = {}
    executed: defaultdict[str, float] = defaultdict(float)
    for row in looked.met:
        if LIMIT not in row.reason and (owner := owner_of(row)):
            at = {(row.libraries or (row.place,))[-1]} if row.kind == "break" else set()
            places.setdefault(owner, set()).update(at)
            stands = [place for place in (row.place, *row.libraries) if place.endswith(f"({row.name})")]
            stands = [place for place in stands if not place.startswith("torch/")]
            given_up.setdefault(owner, {}).update(dict.fromkeys(stands[-1:] if row.kind == "gave-up" else []))
    ran: dict[tuple[str, str, tuple[str, ...]], Counter[int]] = {}  # on each rank
    for row in breaks_of(looked.record):
        if owner := owner_of(row):
            ran.setdefault((owner, row.report, row.libraries), Counter())[row.rank] += row.executed
    for (owner, *_), counts in ran.items():
        executed[owner] += max(counts.values()) / max(looked.steps, 1)
    advice = dict(OWNERS.values())
    found = [
        Folded(o, advice[o], tuple(sorted(at)), executed[o], looked.unit, tuple(given_up[o]))
        for o, at in places.items()
    ]
    again = tuple(followers(looked))
    return [*found, Folded("", NOTHING, again, 0.0, looked.unit)] if again else found
