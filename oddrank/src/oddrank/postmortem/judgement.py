"""From what was read to the verdict: which of the causes is shown, in the order in which one explains another."""

from __future__ import annotations

from oddrank.postmortem import findings, group_creation, remarks, staleness, waits
from oddrank.postmortem.activity import deaths
from oddrank.postmortem.circle import circle
from oddrank.postmortem.death import death
from oddrank.postmortem.gaps import gaps
from oddrank.postmortem.material import Material
from oddrank.postmortem.mismatch import mismatch
from oddrank.postmortem.states import states
from oddrank.postmortem.verdict import Verdict
from oddrank.postmortem.waiting import without_difference

__all__ = ["judge"]


def judge(material: Material) -> Verdict:
    """Join what all ranks left.

    Args:
        material: what was read.

    Returns:
        The verdict; where the material does not reach, it says so in `unknown`.
    """
    ranks = material.ranks()
    found = staleness.current_differences(material, ranks)
    way, closed = waits.path(found, material.dumps)
    if not closed and (crossed := waits.crossed(found, material.dumps)):
        way, closed = crossed, True
    at_end = states(material, found)
    dead = {rank: rows for rank in ranks if (rows := deaths(material, rank))}
    compared = findings.fingerprints(material)
    if dead and not (way and way[-1].what != "missing"):
        verdict = death(material, dead, way)
    elif closed:
        verdict = circle(material, way)
    elif way:
        verdict = mismatch(material, way)
    else:
        verdict = (
            compared
            or findings.sizes(material)
            or group_creation.different_groups(material)
            or without_difference(material, at_end)
        )
    if compared and way:
        verdict.chain.insert(0, compared.head)
    if verdict.kind not in ("dead", "nothing wrong"):
        verdict.chain[:0] = remarks.strangers(material)
        verdict.chain += remarks.strays(material)
    verdict.chain += remarks.outside(material)
    verdict.states = at_end
    verdict.unknown += gaps(material, ranks, verdict.ranks, verdict.kind == "nothing wrong")
    return verdict
