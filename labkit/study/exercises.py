"""Exercises: the reader's code runs on the ranks and is judged by what it does and what the compiler made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.ranks import RankError, Ranks

__all__ = ["Answer", "check"]

BLOCKS = 2


@dataclass(frozen=True)
class Answer:
    """Whether an attempt passed, and what was seen; shows itself as one line a finding."""

    passed: bool
    findings: tuple[str, ...]
    hint: str = ""

    def __repr__(self) -> str:
        head = "passed" if self.passed else "not yet"
        lines = [f"{head}: {self.findings[-1]}" if self.findings else head]
        lines = [*self.findings[:-1], *lines]
        return "\n".join([*lines, *([f"hint: {self.hint}"] if self.hint else [])])

    def __bool__(self) -> bool:
        return self.passed


def check(exercise: str, attempt: Callable[..., Any], ranks: Ranks) -> Answer:
    """Run an attempt at an exercise on `ranks` and say whether it passes; a wrong one gets the hint for its mistake.

    Raises ValueError for an exercise that does not exist or an attempt that is not a function.

    >>> from labkit import tensor_parallel
    >>> with Ranks(2, device="cpu", backend="shm", quiet=True) as ranks:
    ...     bool(check("cliff.gate", tensor_parallel.functional, ranks))
    False
    """
    if exercise not in EXERCISES:
        raise ValueError(f"unknown exercise {exercise!r}: there is {', '.join(EXERCISES)}")
    if not callable(attempt):
        raise ValueError(f"the attempt at {exercise!r} must be a function, got {type(attempt).__name__}")
    return EXERCISES[exercise](attempt, ranks)


def _gate(attempt: Callable[..., Any], ranks: Ranks) -> Answer:
    """Eager: in place and right. Compiled: one graph, no break, and right."""
    try:
        seen = ranks.run(_look_at_gate, attempt, BLOCKS)[0]
    except RankError as error:
        first = error.outcomes[0]
        if first.type == "NotImplementedError":
            return Answer(False, ("there is nothing to check: write the body of the function first",))
        said = str(error).splitlines()[1]
        return Answer(
            False, (said,), "it must take a tensor and return the sum over the ranks, in both modes"
        )
    findings = [
        f"eager: largest error {seen['eager_error']:.1e}, functional operations {seen['eager_functional']}"
    ]
    if seen["returned_none"]:
        return Answer(
            False, ("it returns None",), "return the tensor: the layer goes on with what you return"
        )
    if seen["eager_error"] > 1e-4:
        return Answer(False, tuple(findings), "in eager the sums are not the sum over all ranks")
    if seen["eager_functional"]:
        return Answer(
            False, tuple(findings), "eager pays for wrapping and allocating: take dist.all_reduce there"
        )
    findings.append(
        f"compiled: largest error {seen['error']:.1e}, {seen['regions']} region, {seen['breaks']} breaks a forward"
    )
    if seen["breaks"] or seen["regions"] != 1:
        return Answer(False, tuple(findings), "something in your function hides it from the compiler")
    if seen["error"] > 1e-4:
        return Answer(False, tuple(findings), "functional collectives return a new tensor: return that one")
    if seen["copies"]:
        return Answer(
            False,
            (*findings, f"{seen['copies']} copy_ in the compiled graph"),
            "an in-place call was rewritten with a copy back: call the functional form while compiling",
        )
    return Answer(True, tuple(findings))


def _look_at_gate(attempt: Callable[..., Any], blocks: int) -> dict[str, Any]:
    """On a rank: what the attempt does in eager and compiled. Counts are per forward."""
    import torch

    from labkit import tensor_parallel
    from labkit.experiments.harness import own_reduce
    from labkit.experiments.variants import with_own_code
    from labkit.graphs import record
    from labkit.ranks import here

    me = here()
    config = tensor_parallel.Config(dim=64, heads=2 * me.world_size, blocks=blocks, tokens=4)
    x = config.sample(device=me.device)
    whole = tensor_parallel.full(config)
    probe = attempt(torch.ones(2, device=me.device))
    found: dict[str, Any] = {"returned_none": probe is None}
    if probe is None:
        return {**found, "eager_error": 0.0, "eager_functional": 0}
    with torch.no_grad():
        expected = whole(config.sample()).to(me.device)
        model = with_own_code(
            tensor_parallel.shard(whole, me.rank, me.world_size, own_reduce(attempt)).to(me.device)
        )
        with record() as rec:
            y = model(x)
            found["eager_error"] = float((y - expected).abs().max())
        names = rec.events["name"]
        found["eager_functional"] = int(names.str.startswith("_c10d_functional::all_reduce").sum())
        compiled = torch.compile(model)
        compiled(x)
        with record() as rec, rec.forward():
            y = compiled(x)
    found["error"] = float((y - expected).abs().max())
    counts = rec.counts().iloc[0]
    found["regions"], found["breaks"] = int(counts["regions"]), int(counts["breaks"])
    ran = rec.graphs[rec.graphs["calls"] > 0]
    lines = [line for code in ran["code"] for line in code.splitlines() if not line.lstrip().startswith("#")]
    found["copies"] = sum(".copy_(" in line for line in lines)
    return found


EXERCISES: dict[str, Callable[[Callable[..., Any], Ranks], Answer]] = {"cliff.gate": _gate}
