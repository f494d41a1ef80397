"""The summary for the terminal: the verdict, what led to it, the state of each rank, and what is not known."""

from __future__ import annotations

from collections import Counter

from oddrank.postmortem.material import Material
from oddrank.postmortem.sentences import rank_names
from oddrank.postmortem.verdict import Verdict

__all__ = ["by_state", "kinds", "summary"]

NAMES = ("dead", "compiling", "elsewhere", "waiting", "cut off", "ended", "unknown")


def summary(verdict: Verdict, material: Material, source: str = "") -> str:
    """What the terminal shows: the verdict, the chain, what each rank did, what it compiled, and what is not known.

    Args:
        verdict: on the job.
        material: what was read.
        source: what was being compiled, as text.
    """
    known = [file for file in material.files if file.kind]
    lines = [f"{len(known)} of {len(material.files)} files recognised: {kinds(material)}", ""]
    lines += [f"{verdict.kind.upper()}: {verdict.head}", *(f"  - {one}" for one in verdict.chain), ""]
    for name, ranks in by_state(verdict).items():
        state = verdict.states[ranks[0]].sentence
        example = f"rank {ranks[0]}: " if len(ranks) > 1 else ""
        lines.append(f"{name}: {rank_names(ranks)} ({example}{state})")
    lines += ["", source] if source else []
    lines += ["", *(f"not known: {text}" for text in verdict.unknown)] if verdict.unknown else []
    return "\n".join(lines)


def kinds(material: Material) -> str:
    """How many files of each kind were recognised."""
    counts = Counter(file.kind for file in material.files if file.kind)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def by_state(verdict: Verdict) -> dict[str, list[int]]:
    """The ranks of each state, the worst states first."""
    found = {name: [r for r, state in verdict.states.items() if state.name == name] for name in NAMES}
    return {name: ranks for name, ranks in found.items() if ranks}
