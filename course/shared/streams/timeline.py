"""A timeline: what ran when, on which stream or thread of which rank, simulated or measured."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from course.shared.streams import overlap
from course.shared.streams.hazards import Race
from course.shared.streams.ops import COMMUNICATION, StreamError
from labkit.report import MODELLED, SIMULATED

__all__ = ["ARROWS", "SPANS", "Timeline"]

SPANS = ("rank", "lane", "name", "kind", "start", "end")
ARROWS = ("rank", "from_lane", "from_time", "to_lane", "to_time")


@dataclass(frozen=True)
class Timeline:
    """What ran when. `label` says whether it was simulated, recorded or just run; `unit` what its times are counted in.

    spans: one row for each piece of work, with the columns of SPANS; kind is 'compute', 'collective', 'copy', or of the
    host 'launch' or 'synchronize'. arrows: from a record to the wait that took it. Of a simulated run: `races`, and in
    the program's unit of size `peak`, the most memory in use at once, and `reserved`, what the allocator took from the
    device.
    """

    name: str
    label: str
    unit: str
    spans: pd.DataFrame
    arrows: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(ARROWS)))
    races: tuple[Race, ...] = ()
    peak: float = 0.0
    reserved: float = 0.0

    def __post_init__(self) -> None:
        if missing := [name for name in SPANS if name not in self.spans.columns]:
            raise StreamError(f"the spans of a timeline need the columns {', '.join(missing)}")

    @property
    def simulated(self) -> bool:
        """Whether its times come out of a model and were not measured."""
        return self.label in (SIMULATED, MODELLED)

    @property
    def ranks(self) -> list[int]:
        return sorted({int(rank) for rank in self.spans["rank"]})

    @property
    def makespan(self) -> float:
        """From the first start to the last end, on all ranks and lanes, the host's included."""
        return float(self.spans["end"].max() - self.spans["start"].min()) if len(self.spans) else 0.0

    def lanes(self, rank: int = 0) -> list[str]:
        """The streams and threads that did something, the host first, in the order of their first work."""
        mine = self.spans[self.spans["rank"] == rank]
        found = list(dict.fromkeys(mine.sort_values("start", kind="stable")["lane"]))
        return sorted(found, key=lambda lane: (lane != "host", lane != "default", found.index(lane)))

    def of(self, *kinds: str, rank: int = 0) -> list[overlap.Span]:
        """The (start, end) of all work of these kinds on a rank."""
        rows = self.spans[(self.spans["rank"] == rank) & self.spans["kind"].isin(kinds)]
        return list(zip(rows["start"].astype(float), rows["end"].astype(float), strict=True))

    def communication(self, rank: int = 0) -> float:
        """How much time there was communication: collectives and copies."""
        return overlap.length(self.of(*COMMUNICATION, rank=rank))

    def hidden(self, rank: int = 0) -> float:
        """The share of the communication during which the rank computed as well, 0 to 1; nan without communication."""
        return overlap.covered(self.of(*COMMUNICATION, rank=rank), self.of("compute", rank=rank))

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.makespan:.4g} {self.unit}  [{self.label}]"]
        return "\n".join([*lines, *(f"  RACE  {race}" for race in self.races)])
