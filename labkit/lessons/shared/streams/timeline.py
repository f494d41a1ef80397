"""A timeline: what ran when, on which stream or thread of which rank, simulated, recorded or live."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from labkit.lessons.shared.streams import overlap
from labkit.lessons.shared.streams.hazards import Race
from labkit.lessons.shared.streams.ops import COMMUNICATION, StreamError
from labkit.report import Report

__all__ = ["ARROWS", "SPANS", "Timeline"]

# start: when its stream came to it; work: when it began in earnest (later where a collective waits for its peers)
SPANS = ("rank", "lane", "name", "kind", "start", "work", "end", "op", "because")
ARROWS = ("rank", "from_lane", "from_time", "to_lane", "to_time", "event")


@dataclass(frozen=True)
class Timeline:
    """What ran when. `label` says whether it was simulated, recorded or just run; `unit` what its times are counted in.

    spans: one row for each piece of work, with the columns of SPANS; kind is 'compute', 'collective', 'copy', or of the
    host 'work', 'launch', 'synchronize'. arrows: from a record to the wait that took it. path: the critical path of
    a simulated run, first op first, with the columns rank, lane, name, start, end and because.
    """

    name: str
    label: str
    unit: str
    spans: pd.DataFrame
    arrows: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(ARROWS)))
    path: pd.DataFrame | None = None
    races: tuple[Race, ...] = ()
    notes: tuple[str, ...] = ()
    memory: pd.DataFrame | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if missing := [name for name in SPANS if name not in self.spans.columns]:
            raise StreamError(f"the spans of a timeline need the columns {', '.join(missing)}")

    @property
    def simulated(self) -> bool:
        """Whether its times come out of a model and were not measured."""
        return self.label == "simulated"

    @property
    def ranks(self) -> list[int]:
        return sorted({int(rank) for rank in self.spans["rank"]})

    @property
    def makespan(self) -> float:
        """From the first start to the last end, on all ranks and lanes, the host's included."""
        return float(self.spans["end"].max() - self.spans["start"].min()) if len(self.spans) else 0.0

    def lanes(self, rank: int | None = None) -> list[str]:
        """The streams and threads that did something, the host first, in the order of their first work."""
        mine = self.spans if rank is None else self.spans[self.spans["rank"] == rank]
        found = list(dict.fromkeys(mine.sort_values("start", kind="stable")["lane"]))
        return sorted(found, key=lambda lane: (lane != "host", lane != "default", found.index(lane)))

    def of(self, *kinds: str, rank: int = 0, lane: str | None = None) -> list[overlap.Span]:
        """The (start, end) of all work of these kinds on a rank, or of all work on one of its lanes."""
        rows = self.spans[self.spans["rank"] == rank]
        if kinds:
            rows = rows[rows["kind"].isin(kinds)]
        if lane is not None:
            rows = rows[rows["lane"] == lane]
        return list(zip(rows["start"].astype(float), rows["end"].astype(float), strict=True))

    def communication(self, rank: int = 0) -> float:
        """How much time there was communication: collectives and copies, the waiting for peers included."""
        return overlap.length(self.of(*COMMUNICATION, rank=rank))

    def exposed(self, rank: int = 0) -> float:
        """How much time there was communication and no computation."""
        return overlap.exposed(self.of(*COMMUNICATION, rank=rank), self.of("compute", rank=rank))

    def hidden(self, rank: int = 0) -> float:
        """The share of the communication during which the rank computed as well, 0 to 1; nan without communication."""
        return overlap.covered(self.of(*COMMUNICATION, rank=rank), self.of("compute", rank=rank))

    @property
    def peak(self) -> float:
        """The most memory that was in use at once, in the program's unit of size; 0 where none was allocated."""
        return float(self.memory["used"].max()) if self.memory is not None and len(self.memory) else 0.0

    @property
    def reserved(self) -> float:
        """The memory that the allocator took from the device, in use or kept for later, in the unit of size."""
        return float(self.memory["reserved"].max()) if self.memory is not None and len(self.memory) else 0.0

    def report(self) -> Report:
        """The timeline as a Report, to be saved, and drawn elsewhere."""
        tables = {"spans": self.spans, "arrows": self.arrows}
        if self.path is not None:
            tables["path"] = self.path
        if self.memory is not None:
            tables["memory"] = self.memory
        if self.races:
            tables["races"] = pd.DataFrame([vars(race) for race in self.races])
        provenance = {**self.provenance, "unit": self.unit}
        view = "labkit.lessons.shared.streams_figures:timeline"
        return Report("timeline", self.name, self.label, tables, [], provenance, list(self.notes), view)

    @classmethod
    def of_report(cls, report: Report) -> Timeline:
        """The timeline that a Report holds. Raises StreamError naming what it lacks."""
        for name in ("spans", "arrows"):
            if name not in report.tables:
                raise StreamError(f"report {report.name!r} holds no timeline: it has no table {name!r}")
        tables = report.tables
        races = tuple(Race(**row) for row in tables["races"].to_dict("records")) if "races" in tables else ()
        unit = str(report.provenance.get("unit", "units"))
        return cls(
            report.title, report.label, unit, tables["spans"], tables["arrows"], tables.get("path"), races,
            tuple(report.notes), tables.get("memory"), dict(report.provenance),
        )  # fmt: skip

    def renamed(self, name: str) -> Timeline:
        """The same timeline under another name."""
        return replace(self, name=name)

    def figure(self, *args: Any, **kwargs: Any) -> Any:
        """Draw it with `labkit.views.timeline`."""
        return self.report().figure(*args, **kwargs)

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.makespan:.4g} {self.unit}  [{self.label}]"]
        lines += [f"  RACE  {race}" for race in self.races]
        return "\n".join([*lines, *(f"  note  {note}" for note in self.notes)])
