"""Whether a compiled script computes what it does in eager: a verdict on tables, without torch.

A training amplifies rounding, so that a difference says nothing by itself. It is measured by the same eager run with
its parameters and inputs changed in the last bit, by Dynamo's graphs run operator by operator, which round as eager
code does, and by each region run again on its own inputs, also in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

__all__ = [
    *("ALGORITHM", "CACHE", "CANNOT_TELL", "EQUAL", "FASTPATH", "RANDOM", "ROUNDING", "SHAPE", "WRONG"),
    *("Answer", "Region", "Value", "beyond", "excess", "judge", "parted"),
]

EQUAL, ROUNDING, ALGORITHM = "equal", "rounding", "another algorithm"
WRONG, CANNOT_TELL = "wrong", "cannot tell"
CACHE, SHAPE = "without caches", "shape"
BEYOND = 32.0  # times rounding: sums in another order have some of that
MOST = 3  # names that are listed
RANDOM = "fallback_random"
FASTPATH = "torch.backends.mha.set_fastpath_enabled(False)"


@dataclass
class Value:
    """A tensor that one rank computed in one step, in several runs.

    Numbers are the largest difference from the run in eager, divided by the largest number there; infinite where only
    one of the two runs has the tensor; None where there is no such run.

    Attributes:
        rank: The rank.
        step: The step, counted from 1.
        kind: Of `values.KINDS`.
        name: Of the parameter, or the callable and its line.
        tolerance: Of the dtype.
        compiled: In the compiled run.
        again: Between two runs in eager, or two compiled ones: the larger.
        captured: In a run of Dynamo's graphs, operator by operator in eager.
        nudged: In eager, with the last bit of parameters and inputs changed.
        only: The one of 'compiled' and 'eager' that has it, where one lacks it; `SHAPE` where shapes differ.
    """

    rank: int
    step: int
    kind: str
    name: str
    tolerance: float
    compiled: float = 0.0
    again: float | None = None
    captured: float | None = None
    nudged: float | None = None
    only: str = ""

    @property
    def said(self) -> str:
        """What it is, in words."""
        what = {"losses": "the loss", "outputs": "the output", "gradients": "the gradient"}.get(
            self.kind, self.kind
        )
        return f"{what}{' of ' + self.name if self.name else ''} in step {self.step} on rank {self.rank}"


@dataclass
class Region:
    """How far what a region computed is apart from eager code with the same inputs: its worst result.

    Attributes:
        rank: The rank.
        name: Its number of operators, with the lines of the first and last.
        step: In which it ran.
        of: Which result: an output, an input afterwards, or the gradient of an input.
        gap: Largest difference between compiled and eager.
        compiled: Largest difference between compiled and float64; None where float64 did not run.
        eager: Largest difference between eager and float64.
        nudged: Largest difference that the last bit of inputs makes in eager.
        size: Largest number of the result.
        tolerance: Of the result's dtype, relative.
        eps: Of the coarsest dtype that the region computes in.
        draws: The first operator that draws random numbers, with its line; '' for none.
        unlike: How far its gradient is from that of its own forward, of its size; 0 where it is not, as in eager.
        rewritten: Collectives in place that have a gradient only in this graph, with their lines.
        setting: The one of `CACHE` and `RANDOM` with which the region computes as eager code does.
        under: The setting with which it was compiled; '' for the program's own.
        parts: The first operator that differs at all when it is compiled alone, with its line; '' for none.
        operator: The first one that is then beyond its rounding.
        note: What could not be measured.
    """

    rank: int
    name: str
    step: int
    of: str = ""
    gap: float = 0.0
    compiled: float | None = None
    eager: float = 0.0
    nudged: float = 0.0
    size: float = 0.0
    tolerance: float = 0.0
    eps: float = 0.0
    draws: str = ""
    unlike: float = 0.0
    rewritten: list[str] = field(default_factory=list)
    setting: str = ""
    under: str = ""
    parts: str = ""
    operator: str = ""
    note: str = ""

    @property
    def said(self) -> str:
        """How far it is apart, in words."""
        if not self.gap:
            return "equal to the last bit"
        far = f"{self.of} is {self.gap:.2g} from eager's, of numbers up to {self.size:.2g}"
        if self.compiled is not None:
            far += f"; from float64 it is {self.compiled:.2g}, and eager is {self.eager:.2g}"
        return f"{far}; a last bit in its inputs makes {self.nudged:.2g}"


def excess(one: Region) -> float:
    """How many times the rounding of its eager code a region's difference is.

    Against float64, where that ran: compiled code may differ from eager because it is nearer to the truth.
    """
    own = max(one.eager, one.nudged, one.size * one.eps / 4)
    far = one.gap if one.compiled is None else min(one.gap, one.compiled)
    return far / own if own else math.inf if far else 0.0


def beyond(one: Region) -> bool:
    """Whether a region's difference is more than rounding explains, and than the tolerance of its dtype."""
    return one.gap > one.tolerance * one.size and not excess(one) <= BEYOND


def _large(one: Region) -> bool:
    """Whether no algorithm that is right has such a difference: half of the digits are lost."""
    return not one.gap <= max(one.eps, one.tolerance) ** 0.5 * one.size


@dataclass(frozen=True)
class Answer:
    """The verdict.

    Attributes:
        kind: `EQUAL`, `ROUNDING`, `ALGORITHM`, `WRONG` or `CANNOT_TELL`.
        said: What was found, in words.
        where: The line, operator, parameter or region; '' where it is not known.
        why: What is known of it.
        fix: What to do.
        ask: Settings with which one more run would tell more.
    """

    kind: str
    said: str
    where: str = ""
    why: str = ""
    fix: str = ""
    ask: tuple[str, ...] = ()


def parted(values: Sequence[Value]) -> Value | None:
    """The first value in which two runs of one kind differ, up to the first step that differs from eager."""
    last = next((one.step for one in values if one.compiled > one.tolerance), 0)
    return next((one for one in values if one.step <= last and (one.again or 0) > one.tolerance), None)


def judge(
    values: Sequence[Value],
    measured: Sequence[Region],
    confirmed: Sequence[Value] | None = None,
    lacks: str = "",
) -> Answer:
    """Give the verdict.

    Args:
        values: What was compared, in the order of the program.
        measured: What was measured of each region, in that order.
        confirmed: The same with what the first verdict asked for; None for no such run.
        lacks: A run that was to be made and failed, with its reason; '' for none.
    """
    first = next((one for one in values if one.compiled > one.tolerance), None)
    if not values:
        said = "nothing was compared: no loss, no gradient and no output of a compiled callable"
        return Answer(CANNOT_TELL, said)
    if first is None:
        equal = f"{sum(not one.compiled for one in values)} of them equal to the last bit"
        return Answer(EQUAL, f"all {len(values)} tensors are within the tolerance, {equal}")
    said = f"the first that differs is {first.said}, {_by(first, first.compiled)}"
    if one := parted(values):
        why = f"{one.said} differs between two runs of one kind, {_by(one, one.again)}"
        fix = "find what is not repeatable: a race, the clock, an order of files, a seed from the system"
        return Answer(CANNOT_TELL, f"the program does not repeat itself; {said}", one.name, why, fix)
    if lacks:
        return Answer(CANNOT_TELL, said, why=lacks)
    regions = [one for one in measured if not one.under]
    if (captured := _of_capture(values, regions, confirmed, said)) is not None:
        return captured
    if drawn := next((one for one in regions if one.unlike), None):
        return _drawn_anew(drawn, said)
    odd = [one for one in regions if beyond(one)]
    explained = [one for one in odd if one.setting == RANDOM]
    bad = [one for one in odd if one.setting != RANDOM and not one.draws]
    if wrong := next((one for one in bad if one.setting == CACHE or _large(one)), None):
        return _wrong(wrong, said)
    if explained:
        return _explained(explained[0], measured, confirmed, said)
    if own := next((one for one in bad if one.operator), None):
        why = f"the compiler has an algorithm of its own for it: {own.said}"
        return Answer(ALGORITHM, said, own.operator, why, "backend='aot_eager' has the other")
    return _rounding(values, regions, odd, said)


def _by(one: Value, far: float | None) -> str:
    if one.only == SHAPE:
        return "which has another shape"
    if one.only:
        return f"which only the {'run in eager' if one.only == 'eager' else 'compiled run'} has"
    if not math.isfinite(far or 0.0):
        return "which is not finite in one of them"
    return (
        f"by {far:.2g} of its largest number"
        if (far or 0.0) < 0.01
        else f"by {far:.0%} of its largest number"
    )


def _of_capture(
    values: Sequence[Value], regions: Sequence[Region], confirmed: Sequence[Value] | None, said: str
) -> Answer | None:
    """The verdict on Dynamo's graphs, where they are not the program: their operators round as eager code does."""
    one = next((one for one in values if (one.captured or 0) > one.tolerance), None)
    # under autocast a tensor is coarser than its dtype says
    if one is None or not (one.captured or 0) > max([one.tolerance, *(each.eps for each in regions)]) ** 0.5:
        return None
    before = values[: next(at for at, each in enumerate(values) if each is one)]
    grown = any(each.captured for each in before if (each.step, each.kind) != (one.step, "gradients"))
    why = f"Dynamo's graphs, run operator by operator, differ as well, {_by(one, one.captured)}"
    why += "" if one is next(each for each in values if each.compiled > each.tolerance) else f": {one.said}"
    calls = list(dict.fromkeys(call for region in regions for call in region.rewritten))
    if calls and one.kind == "gradients":
        why += "; in place the collective has no gradient, and in the graph Dynamo puts one that has"
        fix = "call a collective of torch.distributed.nn.functional, which has a gradient in both"
        return Answer(WRONG, said, ", ".join(calls[:MOST]), why, fix)
    if grown:  # out of a rounding, by which a choice may have turned over
        return None
    if confirmed is not None and not any(each.compiled > each.tolerance for each in confirmed):
        why = "torch.nn's attention has a fast path in eager inference only, with other numbers at padded positions"
        return Answer(
            ALGORITHM, said, one.name, why, f"with {FASTPATH} eager code computes as compiled code does"
        )
    fix = "look for what Dynamo took as a constant or left out: a global, an attribute, torch.compiler.is_compiling()"
    return Answer(WRONG, said, one.name, why, fix, (FASTPATH,) if confirmed is None else ())


def _wrong(one: Region, said: str) -> Answer:
    if one.setting == CACHE:
        why = f"{one.said}. Compiled anew without caches it is right: what came from a cache was made for another"
        why += " rank or state"
        fix = "empty the cache; torch.compiler.config.cache_key_tag gives each rank a key of its own"
        return Answer(WRONG, said, one.name, why, fix)
    why = one.said if one.operator else f"{one.said}; no operator of it is wrong when it is compiled alone"
    fix = "report it to those who make the backend; torch.compiler.disable on the function leaves it in eager"
    return Answer(WRONG, said, one.operator or one.name, why, fix)


def _drawn_anew(one: Region, said: str) -> Answer:
    why = f"its gradient is {one.unlike:.0%} of its size from that of its own forward (finite differences), and in"
    why += " eager it is not: backward draws again what the forward drew, and other numbers"
    fix = "recompute nothing that draws: raise activation_memory_budget, or leave the function in eager"
    if one.setting == RANDOM:
        fix = f"torch._inductor.config.{RANDOM} = True computes as eager does"
    return Answer(WRONG, said, one.draws or one.name, why, fix)


def _explained(
    one: Region, regions: Sequence[Region], confirmed: Sequence[Value] | None, said: str
) -> Answer:
    where, setting = (
        one.draws or one.operator or one.parts or one.name,
        f"torch._inductor.config.{RANDOM} = True",
    )
    why = "Inductor draws random numbers with a generator of its own, by design"
    if confirmed is None:
        return Answer(
            CANNOT_TELL, said, where, f"{why}; with {setting} the script was not run", ask=(RANDOM,)
        )
    with_it = [replace(one, under="") for one in regions if one.under == RANDOM or one.setting != RANDOM]
    rest = judge(confirmed, with_it)
    if rest.kind in (EQUAL, ROUNDING):
        left = "within the tolerance" if rest.kind == EQUAL else "apart by rounding only"
        fix = f"{setting} computes as eager does: the whole script is then {left}"
        return Answer(ALGORITHM, said, where, why, fix)
    return replace(rest, said=f"with {setting}, which explains {where}, more is left: {rest.said}")


def _rounding(values: Sequence[Value], regions: Sequence[Region], odd: Sequence[Region], said: str) -> Answer:
    """Rounding, where it grows no faster than the last bit does."""
    where = next((one.parts or one.name for one in regions if one.gap), "")
    reasons = [f"{one.name}: {one.note}" for one in regions if one.note]
    reasons += [
        f"{one.draws} draws random numbers" if one.draws else f"{one.name}: {one.said}" for one in odd
    ]
    worst = _fastest(values)
    if not regions:
        reasons.append("no region was measured")
    elif not reasons and not where:
        reasons.append("what ran again is equal to the last bit: nothing in it rounds otherwise")
    elif worst is None:
        most = max([1.0, *map(excess, regions)])
        bit = next(one.nudged for one in values if one.compiled > one.tolerance)
        why = f"on its own inputs no region is farther from float64 than {most:.2g} times what eager code rounds"
        return Answer(
            ROUNDING, said, where, f"{why}; the last bit of parameters and inputs makes {bit:.2g} there"
        )
    if worst is not None:
        more = (
            f"{worst.said} differs, {_by(worst, worst.compiled)}, where the last bit makes {worst.nudged:.2g}"
        )
        reasons.append(
            more if reasons else f"{more}; a choice, as of a largest element, may have turned over"
        )
    return Answer(CANNOT_TELL, said, where, "; ".join(list(dict.fromkeys(reasons))[:MOST]))


def _fastest(values: Sequence[Value]) -> Value | None:
    """The first value that is farther apart than the last bit explains; None where none is.

    Compiled code rounds more often than once: as much as its first difference is more than that of the last bit, but no
    more than `BEYOND`, it may be later, too.
    """
    # of a single number the last bit may make nothing by chance
    steps = dict.fromkeys(one.step for one in values)
    usual = {step: median(one.nudged or 0.0 for one in values if one.step == step) for step in steps}
    begins = 1.0
    for one in values:
        allowed = max(one.nudged or 0.0, usual[one.step], one.tolerance / BEYOND)
        if one.step == values[0].step:
            begins = max(begins, min(one.compiled / allowed, BEYOND))
        if not one.compiled <= BEYOND * allowed * (1.0 if one.step == values[0].step else begins):
            return one
    return None
