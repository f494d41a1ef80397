"""What differs in a program between versions of torch, from plain data of what was recorded on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from oddrank.counted import counted

__all__ = ["CHANGES", "Change", "Told", "first_step", "reference", "shown", "tell"]

COUNTS = ("breaks", "frames given up", "graphs", "recompiles", "collectives")
KINDS = ("losses", "outputs", "parameters")
_COLUMN = {"frames given up": "given-up"}
# what a version may change
CHANGES = (*(_COLUMN.get(name, name) for name in COUNTS), "bytes", "causes", *KINDS, "error")
Data = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One thing that another version does otherwise.

    Attributes:
        name: One of `CHANGES`.
        said: What changes, in words.
    """

    name: str
    said: str


@dataclass
class Told:
    """What is said of a version.

    Attributes:
        label: The version.
        error: Why the script fails on it; '' where it does not.
        changes: What differs from the reference.
        same: What does not.
        left: What was not compared, and why.
        first: The version that it was compared with; '' for this one itself, or where there is none.
    """

    label: str
    error: str = ""
    changes: list[Change] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    first: str = ""

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if self.error:
            return f"{self.label}: the script fails: {self.error}"
        left = f"; not compared: {'; '.join(self.left)}" if self.left else ""
        if not self.first:
            return f"{self.label}: the others are compared with it{left}"
        same = ", ".join(self.same) or "nothing"
        if not self.changes:
            return f"{self.label}: the same as {self.first} in what was compared: {same}{left}"
        changes = "; ".join(change.said for change in self.changes)
        return f"{self.label}: changed from {self.first}: {changes}; the same: {same}{left}"


def reference(versions: list[Data]) -> Data | None:
    """Return the first version on which the script ran each time; None where there is none."""
    return next((one for one in versions if not _error(one)), None)


def tell(versions: list[Data]) -> list[Told]:
    """Say of each version what differs from the reference.

    Args:
        versions: What was measured on each, as `oddrank.look.versions` keeps it.
    """
    first, found = reference(versions), []
    for one in versions:
        told = Told(one["label"], _error(one))
        found.append(told)
        if told.error or first is None:
            if first is not None:
                told.changes.append(Change("error", f"it fails: {told.error}"))
        elif one is first:
            told.left += _unsteady(one)
        else:
            told.first = first["label"]
            _compare(first, one, told)
    if first is not None and first is not versions[0]:
        found[versions.index(first)].left.append("the versions before it fail")
    return found


def _error(version: Data) -> str:
    runs = version["runs"]
    failed = [run["error"] for run in runs if run["error"]]
    often = f" (in {len(failed)} of {len(runs)} runs)" if 0 < len(failed) < len(runs) else ""
    return failed[0] + often if failed else ""


def _compare(first: Data, other: Data, told: Told) -> None:
    for name in (*COUNTS, "bytes"):
        a, b = _steady(first, name), _steady(other, name)
        shown_as = "bytes of collectives" if name == "bytes" else name
        if a is None or b is None:
            unsteady = first["label"] if a is None else other["label"]
            told.left.append(f"{shown_as}, which differ between runs of {unsteady}")
        elif None in a.values() or None in b.values():
            told.left.append(f"{shown_as}, which are not known")
        elif a != b:
            parts = _parts(first["runs"][0], other["runs"][0], name)
            said = f"{shown_as} {_numbers(a)} before, {_numbers(b)} now{parts}"
            told.changes.append(Change(_COLUMN.get(name, name), said))
        else:
            told.same.append(shown_as)
    _compare_causes(first, other, told)
    _compare_values(first, other, told)


def _steady(version: Data, name: str) -> dict[str, Any] | None:
    """A count by rank, where all runs of a version agree; otherwise None."""
    each = [_count(run, name) for run in version["runs"]]
    return each[0] if all(one == each[0] for one in each) else None


def _count(run: Data, name: str) -> dict[str, Any]:
    if name == "bytes":
        return dict(run["bytes"])
    return {rank: round(mine[name], 6) for rank, mine in run["counts"]["ranks"].items()}


def _unsteady(version: Data) -> list[str]:
    names = [name for name in (*COUNTS, "bytes") if _steady(version, name) is None]
    kinds = [kind for kind, far in version["own"]["kinds"].items() if not far["close"]]
    return [f"{name}, which differ between its own runs" for name in names + kinds]


def _numbers(by_rank: dict[str, Any]) -> str:
    values = list(by_rank.values())
    return f"{values[0]:,.10g}" if len(set(values)) == 1 else "/".join(f"{value:,.10g}" for value in values)


def _parts(first: Data, other: Data, name: str) -> str:
    """By operation, where collectives changed."""
    if name != "collectives":
        return ""
    a, b = (next(iter(run["counts"]["ranks"].values()))["operations"] for run in (first, other))
    apart = [
        f"{op} {a.get(op, 0):g} and {b.get(op, 0):g}"
        for op in sorted({*a, *b})
        if a.get(op, 0) != b.get(op, 0)
    ]
    return f" ({', '.join(apart)})" if apart else ""


def _compare_causes(first: Data, other: Data, told: Told) -> None:
    a, b = (
        {one["key"]: one for run in version["runs"] for one in run["causes"]} for version in (first, other)
    )
    always = [
        set.intersection(*({one["key"] for one in run["causes"]} for run in version["runs"]))
        for version in (first, other)
    ]
    now = [cause for key, cause in b.items() if key in always[1] and key not in a]
    gone = [cause for key, cause in a.items() if key in always[0] and key not in b]
    for what, causes in (("appears", now), ("is gone", gone)):
        told.changes += [Change("causes", f"{what}: {_line(cause)}") for cause in causes]
    if not (now or gone):
        told.same.append("causes")
    unsteady = [
        one
        for found, every in zip((a, b), always, strict=True)
        for key, one in found.items()
        if key not in every
    ]
    told.left += [f"a cause in some runs of one version only: {_line(one)}" for one in unsteady]


def _line(cause: Data) -> str:
    return ": ".join(filter(None, [cause["place"], cause["said"]]))


def _compare_values(first: Data, other: Data, told: Told) -> None:
    for kind in KINDS:
        own = [one["own"]["kinds"].get(kind) for one in (first, other)]
        far = other["first"]["kinds"].get(kind)
        if far is None:
            continue
        for version, spread in zip((first, other), own, strict=True):
            if spread is not None and not spread["close"]:
                told.left.append(f"{kind}, which differ between runs of {version['label']}: {_far(spread)}")
                break
        else:
            if far["close"]:
                told.same.append(f"{kind} ({_far(far)})")
            else:
                told.changes.append(Change(kind, f"{kind} differ: {_far(far)}"))
    told.left += other["first"]["left"]


def _far(far: Data) -> str:
    if far["equal"]:
        return f"{counted(far['compared'], 'tensors')}, bit-equal"
    relative = (
        f"{far['relative']:.2g} of the largest number" if far["relative"] < float("inf") else "infinite"
    )
    within = "within the tolerance: " if far["close"] else ""
    return f"{within}by at most {far['absolute']:.2g}, {relative}, at {far['where']}"


def first_step(version: Data) -> str:
    """Return the seconds of the first step, from the least to the most of all runs."""
    took = [run["first_s"] for run in version["runs"] if run.get("first_s") is not None]
    return f"{min(took):.1f} to {max(took):.1f}" if took else ""


def shown(versions: list[Data]) -> Iterator[dict[str, str]]:
    """Return the rows of the table: columns by what was measured, as texts."""
    first = reference(versions)
    kinds = [kind for kind in KINDS if any(kind in one["first"]["kinds"] for one in versions)]
    cells: dict[str, Callable[[Data, str], str]] = {name: _cell for name in (*COUNTS, "bytes")}
    for one in versions:
        failed = bool(_error(one))
        row = {"torch": one["label"]}
        row |= {name: "" if failed else cell(one, name) for name, cell in cells.items()}
        row["first step, s"] = first_step(one)
        for kind in kinds:
            far, own = one["first"]["kinds"].get(kind), one["own"]["kinds"].get(kind)
            spread = [v["own"]["kinds"].get(kind) for v in (one, first) if v is not None]
            if failed or one is first or far is None:
                row[kind] = "" if own is None else "bit-equal" if own["equal"] else f"{own['relative']:.1g}"
                row[kind] += " between runs" * bool(row[kind])
            elif any(each is not None and not each["close"] for each in spread):
                row[kind] = "not compared"
            else:
                row[kind] = (
                    "bit-equal" if far["equal"] else f"{far['relative']:.1g}{', close' * far['close']}"
                )
        if any(map(_error, versions)):
            row["error"] = _error(one)
        yield row


def _cell(version: Data, name: str) -> str:
    each = [_count(run, name) for run in version["runs"]]
    if any(value is None for one in each for value in one.values()):
        return "not known"
    return " or ".join(dict.fromkeys(map(_numbers, each)))
