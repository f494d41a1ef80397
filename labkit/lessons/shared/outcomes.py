"""How a program ended on ranks, in the words that drills and claims use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.ranks import RankError, Ranks
from labkit.study.checks import HOLDS, Result, Seen, cannot_tell, quietly, verdict

__all__ = ["all_of", "drill", "judge"]

STALL_S = 1.0
LIMIT_S = 120.0  # for compiling on a busy machine; a hang is told long before
# what an error says that names a difference between ranks: our own, and the one of the collective check
CAUGHT = (
    *("ParityError", "PlanError", "DigestError", "HealthError", "FingerprintError"),
    *("ContractError", "Diverged", "WrongGroup"),
)


def judge(error: RankError) -> tuple[str, str]:
    """How a call that failed ended, and the line that says most."""
    first = error.outcomes[0]
    own = next((o for o in error.outcomes if o.type in CAUGHT), None)
    if own is not None:
        return "caught", f"{own.type}: {own.message}"
    if error.ended == "stalled":
        waits = [f"rank {o.rank} in {o.waits}" for o in error.outcomes if o.waits]
        return "hung", ", ".join(sorted(waits)) or error.headline
    if first.kind == "dead":
        return "crash", first.describe().splitlines()[0].removesuffix(", here:")
    if first.kind == "unfinished":
        return "hung", error.headline
    said = first.message.strip().splitlines()
    return "error", f"{first.type}: {said[0] if said else ''}"


def drill(ranks: Ranks, program: Callable[..., Any], *arguments: Any) -> Seen:
    """Run a program on ranks and say how it ends.

    Args:
        ranks: started ranks.
        program: what each rank calls with `arguments`.

    Returns:
        `how` ('finished', 'hung' or 'failed') and `values` by rank; or what the errors said in `says`, and for a hang
        in `waits` what each rank stood in. A rank that raised is a failure, not a hang: a program with a mistake in it
        must not look like a deadlock.

    Raises:
        TimeoutError: the ranks were not over in time and did not wait for each other: a slow machine is no hang.
    """
    try:
        values = ranks.run(quietly, program, *arguments, stall=STALL_S, timeout=LIMIT_S)
        return {"how": "finished", "values": list(values)}
    except RankError as error:
        if error.ended == "timed out":
            raise TimeoutError(f"not over in {LIMIT_S:g} s, and no hang: {error.headline}") from error
        said = " ".join(f"{outcome.type} {outcome.message}" for outcome in error.outcomes).strip()
        if judge(error)[0] != "hung":
            return {"how": "failed", "says": said[:300]}
        waits = {outcome.rank: outcome.waits or "Python" for outcome in error.outcomes}
        return {"how": "hung", "says": said[:300], "waits": [waits[rank] for rank in sorted(waits)]}


def all_of(*found: Result) -> Result:
    """One result of several: it holds where each does, and cannot tell where one cannot.

    Args:
        found: what judges found.

    >>> all_of(verdict(True, "one graph"), verdict(False, "two breaks"))
    Result(status='changed', measured='one graph; two breaks', missing='')
    """
    measured = "; ".join(one.measured for one in found)
    missing = next((one.missing for one in found if one.missing), "")
    return (
        cannot_tell(missing, measured)
        if missing
        else verdict(all(f.status == HOLDS for f in found), measured)
    )
