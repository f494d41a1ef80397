"""What ranks ran: when each graph break was executed, and the first difference between ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pandas as pd

from labkit.trace.events import collective_op, point_to_point

__all__ = ["Difference", "Step", "break_times", "first_difference"]


@dataclass(frozen=True)
class Step:
    """One thing that a rank did: enter a region, execute a break, or call a collective. Times as in `rec.events`.

    `then` is the next one in the program's own code, where this one is in a library.
    """

    kind: str
    name: str
    start_us: float
    end_us: float
    place: str = ""
    signature: str = field(default="", repr=False)
    then: str = ""

    def __str__(self) -> str:
        at = f" at {self.place}" if self.place and self.place not in self.name else ""
        return f"{self.kind} {self.name}{at}" + (f", then {self.then}" if self.then else "")

    @property
    def own(self) -> bool:
        """Whether its place is in the program: files of libraries have a folder in their name."""
        return bool(self.place) and "/" not in self.place.partition(":")[0]


@dataclass(frozen=True)
class Difference:
    """The place where ranks part.

    Args:
        forward: The number of the forward.
        index: The number of steps in it that the ranks have in common.
        steps: What each rank did next; None for nothing.
        odd: The ranks that differ from most, or from the lowest rank where there is no majority.
    """

    forward: int
    index: int
    steps: dict[int, Step | None]
    odd: list[int]

    def __str__(self) -> str:
        said: dict[str, list[int]] = {}
        for rank, step in self.steps.items():
            said.setdefault("nothing more" if step is None else str(step), []).append(rank)
        whole = [f"rank {' and '.join(map(str, ranks))}: {what}" for what, ranks in said.items()]
        if len(whole) == 1:
            # alike by name: what differs is inside
            whole = [
                f"{whole[0]}, with another graph or other shapes on rank {' and '.join(map(str, self.odd))}"
            ]
        return f"forward {self.forward}, step {self.index}: " + "; ".join(whole)


def first_difference(events: pd.DataFrame, graphs: pd.DataFrame, breaks: pd.DataFrame) -> Difference | None:
    """Compare the ranks' steps in order; see `Record.first_difference`."""
    ranks = sorted(int(rank) for rank in events["rank"].unique())
    if len(ranks) < 2:
        return None
    steps = {rank: _steps(rank, events, graphs, breaks) for rank in ranks}
    for forward in sorted({f for mine in steps.values() for f in mine}):
        here = {rank: mine.get(forward, []) for rank, mine in steps.items()}
        for index in range(max(map(len, here.values()))):
            signatures = {
                rank: mine[index].signature if index < len(mine) else "" for rank, mine in here.items()
            }
            if len(set(signatures.values())) > 1:
                seen = list(signatures.values())
                usual = max(signatures.values(), key=seen.count)  # the first one where there is no majority
                odd = [rank for rank, signature in signatures.items() if signature != usual]
                at = {rank: _next(mine[index:]) for rank, mine in here.items()}
                return Difference(forward, index, at, odd)
    return None


def _next(steps: list[Step]) -> Step | None:
    """The first of a rank's steps, with the one in the program's own code that follows it."""
    if not steps or steps[0].own or not steps[0].place:
        return steps[0] if steps else None
    return replace(steps[0], then=str(next((step for step in steps if step.own), "")))


def _steps(
    rank: int, events: pd.DataFrame, graphs: pd.DataFrame, breaks: pd.DataFrame
) -> dict[int, list[Step]]:
    """Everything one rank did on its main thread that the others should have done as well, by forward."""
    mine = events[(events["rank"] == rank) & (events["thread"] == "main") & (events["forward"] >= 0)]
    mine = mine.sort_values("start_us", kind="stable")
    digests = graphs[graphs["rank"] == rank].set_index("compile_id")["digest"].to_dict()
    ended = breaks[(breaks["rank"] == rank) & (breaks["kind"] == "break")]
    why = {b["compile_id"]: b for b in ended.to_dict("records")}
    found: dict[int, list[Step]] = {}
    for forward in sorted(mine["forward"].unique()):
        steps: list[Step] = []
        for e in mine[mine["forward"] == forward].to_dict("records"):
            if e["kind"] == "region":
                sign = f"region {e['name']} {digests.get(e['compile_id'], '')}"
                steps.append(Step("region", e["name"], e["start_us"], e["end_us"], e["place"], sign))
                if b := why.get(e["compile_id"]):  # which it will execute, after its graph
                    sign = f"break {b['place']} {b['reason']}"
                    steps.append(Step("break", b["reason"], e["start_us"], e["end_us"], b["place"], sign))
            elif e["kind"] == "collective" and not point_to_point(e["name"]):
                op = collective_op(e["name"])
                shapes = f" of {e['shapes']}" if e.get("shapes") else ""
                sign = f"collective {op}{shapes}"
                steps.append(Step("collective", op + shapes, e["start_us"], e["end_us"], e["place"], sign))
        found[int(forward)] = steps
    return found


def break_times(events: pd.DataFrame, breaks: pd.DataFrame) -> pd.DataFrame:
    """Place every executed break on the time axis.

    A region whose compile ended in a break executes it each time it runs, when its compiled part is done.

    Args:
        events: A record's events, or those of one forward, with their times as `start` and `end` in any unit.
        breaks: Of the record.

    Returns:
        One row an execution, in the order of time: the columns of its region's event, `at` in the unit of the events,
        reason and place. `Record.counts` has their mean per forward, from the column `executed`.
    """
    keys = ["rank", "compile_id"]
    broken = breaks[breaks["kind"] == "break"].drop_duplicates(keys)
    runs = _runs(events).drop(columns="place", errors="ignore")
    return runs.merge(broken[[*keys, "reason", "place"]], on=keys).sort_values("at", kind="stable")


def _runs(events: pd.DataFrame) -> pd.DataFrame:
    """Every run of a region with the time `at` when its compiled part was done."""
    runs = events[events["kind"] == "region"].sort_values("start")
    inside = events[events["kind"] == "compiled"][["rank", "compile_id", "start", "end"]]
    inside = inside.rename(columns={"end": "at"}).sort_values("start")
    if inside.empty:
        return runs.assign(at=runs["start"])
    runs = pd.merge_asof(runs, inside, on="start", by=["rank", "compile_id"], direction="forward")
    # a region with nothing to compute before its break calls no kernel: its break is where it starts
    return runs.assign(at=runs["at"].where(runs["at"] <= runs["end"], runs["start"]))
