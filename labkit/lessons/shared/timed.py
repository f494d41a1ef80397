"""Timings as plain data for a claim, and what they let anyone say of it."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.study.checks import Result, Seen, cannot_tell, verdict
from labkit.timing import Measurement, compare

__all__ = ["timed", "timing_result"]


def timed(label: str, samples: Mapping[str, tuple[float, ...]], a: str, b: str) -> Seen:
    """The verdict on a against b as plain data, with the label of the run."""
    found = compare(Measurement(a, samples[a]), Measurement(b, samples[b])).to_dict()
    # an interval without an end is no number that JSON has
    bounds = {key: found[key] if abs(found[key]) < 1e300 else None for key in ("low", "high")}
    return {**found, **bounds, "label": label}


def timing_result(seen: Seen, claimed: str, hardware: str) -> Result:
    """Holds when the verdict is the claimed one; else nothing is told: other hardware may well differ.

    >>> timing_result({"outcome": "cannot tell", "ratio": 1.0, "label": "shm · cpu"}, "slower", "2 GPUs").status
    'cannot tell'
    """
    said = f"{seen['outcome']}, time ratio {seen['ratio']:.2f} [{seen['label']}]"
    if seen["outcome"] == claimed:
        return verdict(True, said)
    why = "the spread is too wide" if seen["outcome"] == "cannot tell" else "the opposite here"
    return cannot_tell(f"{why}; the claim is about {hardware}", said)
