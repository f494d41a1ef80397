"""Timings as plain data for a claim, and what they let anyone say of it."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.study.checks import Result, Seen, cannot_tell, verdict
from labkit.timing import Measurement, compare

__all__ = ["all_of", "timed", "timing_result"]

SAME = 1.1  # a ratio that is surely below it is no difference


def timed(label: str, samples: Mapping[str, tuple[float, ...]], a: str, b: str) -> Seen:
    """The verdict on a against b as plain data, with the label of the run."""
    found = compare(Measurement(a, samples[a]), Measurement(b, samples[b])).to_dict()
    # an interval without an end is no number that JSON has
    bounds = {key: found[key] if abs(found[key]) < 1e300 else None for key in ("low", "high")}
    return {**found, **bounds, "label": label}


def timing_result(seen: Seen, claimed: str, hardware: str) -> Result:
    """Holds when the verdict is the claimed one, and is refuted by the opposite one, or by what is no difference.

    Both are told of what ran here: the label stands with the numbers, and the claim may be about other hardware.

    Args:
        seen: what `timed` gives.
        claimed: 'faster' or 'slower'.
        hardware: what the claim is about, for what is too noisy to tell.

    >>> seen = {"outcome": "cannot tell", "ratio": 1.0, "low": 0.6, "high": 1.9, "label": "shm · cpu"}
    >>> timing_result(seen, "slower", "2 GPUs").status, timing_result(seen | {"high": 1.04}, "slower", "2 GPUs").status
    ('cannot tell', 'changed')
    """
    said = f"{seen['outcome']}, time ratio {seen['ratio']:.2f} [{seen['label']}]"
    if seen["outcome"] != "cannot tell":
        return verdict(seen["outcome"] == claimed, said)
    low, high = seen.get("low"), seen.get("high")
    if (claimed == "slower" and high and high < SAME) or (claimed == "faster" and low and low > 1 / SAME):
        return verdict(False, f"no difference, time ratio {seen['ratio']:.2f} [{seen['label']}]")
    return cannot_tell(f"the spread is too wide; the claim is about {hardware}", said)


def all_of(parts: Mapping[str, Result]) -> Result:
    """The answer to a claim of several parts: no where a part is, else unknown where a part is, and what all measured.

    >>> all_of({"one": verdict(True, "a"), "other": cannot_tell("more rounds", "b")})
    Result(status='cannot tell', measured='one: a; other: b', missing='more rounds')
    """
    worst = min(parts.values(), key=lambda one: ("changed", "cannot tell", "holds").index(one.status))
    said = "; ".join(f"{name}: {one.measured}" for name, one in parts.items())
    return Result(worst.status, said, worst.missing)
