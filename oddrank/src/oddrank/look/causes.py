"""What to do first: one list of causes over all that a look found, the program's own code before torch's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import pandas as pd

from oddrank.counted import counted
from oddrank.look import (
    checkpoints,
    crossed,
    entering,
    epochs,
    rescaled,
    step_collectives,
    switches,
    trained,
    uncompiled,
    weight_names,
)
from oddrank.look.breaks import DECORATES, LIMIT, Again, Break, phases
from oddrank.look.finding import Finding
from oddrank.look.look import NUMBERS_ONLY, Look
from oddrank.look.owners import library_of, owner_of
from oddrank.look.shared_code import Split, splits
from oddrank.look.switch_effects import REWRITTEN
from oddrank.record.guard_words import form, from_break, source

__all__ = [
    "APART",
    "ORDER",
    "Cause",
    "OPEN",
    "causes",
    "followers",
    "shown",
]

ORDER = (
    "What is wrong comes first, then what costs most over the whole run: compiling, and of breaks the time outside of"
    " compiled code. What needs nothing comes last."
)
APART = "ranks differ"  # how a cause of that begins
OPEN = 3  # causes that are told in full
GENERATOR = "Attempt to trace generator"
FEW = 3  # codes of a function, each of which the steps go on to use
_DDP = "DistributedDataParallel.forward was "
_DONE = re.compile(r" was (?:compiled|traced) ")
_PYTHON = "python/"
_UNNAMED = re.compile("`.*?`")
_LATER = re.compile(r"(?<= -> )(\S+?)(?: -> .*)?\)$")  # values after the first two
_CHOICE = "expected: one compile for each value of `{}`"
_ZERO_ONE = "torch compiles sizes 0 and 1 for themselves, also where a dimension is dynamic"
# in a program that trains nothing, and may serve: what has the size 1 there can hardly be left out
_SERVED = f"expected: one compile for prompts, one for single tokens or requests; {_ZERO_ONE}"
WASTED = 1e9  # seconds that stand for what is sent without need: after what is wrong, before what takes time
_CHOICES = "choose outside of the compiled function what the value selects, and pass that"
_OBJECTS = "make the object once and keep it; where several modules share this code, share it between them"
# holds the function that torch compiles for all of its own modules
_SHARED = "torch/_dynamo/external_utils.py"
# a guard on a text, which selects what a function does
_SELECTS = re.compile(r" == (['\"]).*\1$")
# what a break's reason or a failed guard holds -> what to do
_FIXES = (
    (GENERATOR, "none where it computes nothing, as a context manager; else call it in a function that is compiled"),
    (r"builtin operator print|Logger|logging", "remove the output, or print after the compiled call"),
    (r"graph_break\(\)", "remove the call of graph_break()"),
    (
        r"Tensor\.(?:item|tolist)|_local_scalar",
        "return the tensor and take its value outside; where the code needs the number,"
        " torch._dynamo.config.capture_scalar_outputs = True, and torch._check for sizes",
    ),
    (r"[Dd]ata-dependent|dependent on the data", "keep the value a tensor: torch.where, torch.cond"),
    (r"c10d|distributed|all_reduce|all_gather|Work|ProcessGroup", "use the functional collectives, or call it outside"),
    (
        r"size mismatch.*(?:expected|actual) [01]\b|size\(\)\[\d+\] == [01]$",
        f"pad it, or drop that batch: {_ZERO_ONE}",
    ),
    (r"size mismatch|size\(\)|Eq\(s|length", "use torch._dynamo.mark_dynamic, or pad to a few sizes"),
    (r"requires_grad mismatch", "expected once, as where the first block alone has an input without gradient"),
    (r"to be a tensor type", "expected once: one compile with a tensor and one without"),
    (r"grad_mode", "expected once: one compile with gradients and one without"),
    (r"param_groups", "keep this setting constant, or make it a tensor: a schedule changes it"),
    (r"dtype mismatch|stride mismatch", "give every call an input of one dtype and layout"),
    (r"check_obj_id|deallocated", _OBJECTS),
    (r" == -?[\d.]+(?:e-?\d+)?$", "make the number a tensor, or keep it constant"),
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """One thing to do.

    Args:
        said: What happens, with the function.
        place: The line in the program, '' where there is none.
        library: The library's line where torch stopped, or that was compiled again; '' for none.
        why: The reason or guard, in words.
        cost: In words, with its unit.
        fix: What to do.
        hint: Torch's own hint.
        seconds: The cost over the whole run, by which causes are ordered; infinite for what stops everything.
        resumed: The line of the break after which a recompiled function goes on, where all its guards are on the value
            from there.
        stands: What stands at the library's line.
    """

    said: str
    place: str = ""
    library: str = ""
    why: str = ""
    cost: str = ""
    fix: str = ""
    hint: str = ""
    seconds: float = 0.0
    resumed: str = ""
    stands: str = "torch stopped at"

    @property
    def expected(self) -> bool:
        """Whether nothing has to be done."""
        return self.fix.startswith(("expected", "none"))

    @property
    def wrong(self) -> bool:
        """Whether the job does something else than it should."""
        return self.seconds == float("inf")

    @property
    def line(self) -> str:
        """The cause in one line."""
        return f"{self.lines()[0]}; {self.fix}" if self.expected else self.lines()[0]

    def lines(self) -> list[str]:
        """Return the cause as lines of text, without torch's hint."""
        where = ", ".join(filter(None, [self.place, self.library and f"{self.stands} {self.library}"]))
        said = f"{where}: {self.said}" if where else self.said
        told = [f"why: {self.why}" if self.why else "", f"cost: {self.cost}" if self.cost else ""]
        return [said, *filter(None, [*told, f"fix: {self.fix}" if self.fix else ""])]


def causes(looked: Look) -> list[Cause]:
    """Return the causes in the program's own code, the costliest first, and last what needs nothing."""
    again = _recompiles(looked)
    again, broke = _resumed([one for one in again if not _follows(one, again)], _breaks(looked))
    found = [
        *_apart(looked),
        *_lost(looked),
        *_unused(looked),
        *_numbers(looked),
        *_gradients(looked),
        *_training(looked),
        *again,
        *broke,
        *_given_up(looked),
        *map(_of, uncompiled.bypassed(looked.held["around"])),
        *_names(looked),
    ]
    return sorted(found, key=lambda cause: (cause.expected, -cause.seconds))


def followers(looked: Look) -> list[str]:
    """Return the functions of torch and Python that are compiled again only because the program's own code is."""
    again = _recompiles(looked)
    mine = [(one.library, _DONE.split(one.said)[0]) for one in again if _follows(one, again)]
    return [
        f"{PurePath(file.partition(':')[0]).stem}.{name}" if file.startswith(_PYTHON) else name
        for file, name in mine
    ]


def _follows(cause: Cause, others: Sequence[Cause]) -> bool:
    """Whether a recompile is of Python's code, or of DDP's for the reason of one in the program's own."""
    if cause.said.startswith(_DDP):
        own = [one for one in others if not (one.said.startswith(_DDP) or one.library.startswith(_PYTHON))]
        return bool(cause.why) and _reasons([cause]) <= _reasons(own)
    return cause.library.startswith(_PYTHON)


def _reasons(of: Sequence[Cause]) -> set[str]:
    """The reasons of recompiles, without the names of values, which each function has its own of."""
    each = (why for one in of for why in _UNNAMED.sub("", one.why).split("; "))
    return {_LATER.sub(r"\1", why.replace(" each time", "")) for why in each if why != "..."}


def _fix(reason: str, otherwise: str = "") -> str:
    return next((said for pattern, said in _FIXES if re.search(pattern, reason)), otherwise)


def _unused(looked: Look) -> list[Cause]:
    """Objects that are never called, and a program in which nothing was compiled."""
    found = []
    for row in switches.idle(looked).itertuples():
        said = f"the compiled {row.name} is never called"
        fix = "call what torch.compile returns, in place of what it was given"
        found.append(Cause(said, f"{row.place}", why="no call reached it", fix=fix, seconds=float("inf")))
    made = looked.held["asked"]
    called = made[made["calls"] > 0].drop_duplicates(["place", "name"])
    if len(called) and not any(row.operators for row in looked.compiled):
        for row in called.itertuples():
            said = f"nothing was compiled: {counted(row.calls, 'calls')} of {row.name}, and 0 graphs"
            why = fix = ""
            if not row.own:
                why, fix = _no_frame(looked, row.ddp)
            elif looked.met:
                why = "its frames broke before any operator, or were given up: see the breaks"
            found.append(Cause(said, row.place, why=why, fix=fix, seconds=float("inf")))
    return found


def _no_frame(looked: Look, ddp: bool) -> tuple[str, str]:
    """Why torch's own modules, such as nn.Sequential, got no graph, and what to do."""
    broke = "" if not looked.met else "the graph broke before the first layer, and "
    why = f"{broke}every forward in it is torch's own code, where no graph begins"
    if ddp:
        return why, "compile the module, then wrap it: DDP(torch.compile(module))"
    before = "use torch.compile(module), before fully_shard where there is one"
    return why, f"{before}; or compile a module of your own whose forward calls these layers"


def _apart(looked: Look) -> list[Cause]:
    """That ranks differ; what is said of parameters holds what to do."""
    said = looked.apart()
    fix = "let all ranks take the same branches, with inputs of the same kinds and sizes"
    if NUMBERS_ONLY in said:
        fix = "none where the number is the rank's own, as its index or a size of its data; else give all the same"
    if said in [one.said for one in looked.gradients]:
        return []  # a cause of its own
    fix = "" if said in looked.unequal() else fix
    found = [Cause(f"{APART}: {said}", fix=fix, seconds=float("inf"))] if said else []
    sent = step_collectives.differing(looked.held["calls"])
    return found + [Cause(one, seconds=float("inf")) for one in sent if said and one != said]


def _lost(looked: Look) -> list[Cause]:
    """Checkpoints of which little or nothing was loaded, without an error."""
    return [_of(one, float("inf")) for one in checkpoints.lost(looked.held["loads"])]


def _numbers(looked: Look) -> list[Cause]:
    """Inputs, messages and gradients that are wrong, without an error."""
    held = looked.held
    found = [*entering.unlike(held["entering"]), *crossed.crossed(held["crossed"])]
    found += [*rescaled.rescaled(held["rescaled"]), *epochs.repeated(held["epochs"])]
    return [_of(one, float("inf")) for one in found]


def _names(looked: Look) -> list[Cause]:
    """Weights that are kept under names that torch.compile and DDP have changed."""
    return [_of(one) for one in weight_names.kept(looked.held["names"])]


def _of(found: Finding, seconds: float = 0.0) -> Cause:
    return Cause(found.said, found.place, why=found.why, fix=found.fix, seconds=seconds)


def _gradients(looked: Look) -> list[Cause]:
    """Gradients that lose what other ranks computed, and collectives that have one in compiled code only."""
    found = [_of(one._replace(said=f"{APART}: {one.said}"), float("inf")) for one in looked.gradients]
    seen = looked.held["effects"]
    seen = seen[seen["switch"] == REWRITTEN].drop_duplicates(["value", "before"])
    for row in seen.itertuples():
        said = f"dist.{row.value} passes gradients between ranks when compiled, and does not in Python"
        why = "torch.compile puts a functional collective in its place, which has a gradient"
        fix = (
            "give it x.detach() where no gradient is meant; else call a collective that has one in both, as"
            " torch.distributed.nn.functional has, or _functional_collectives in the compiled function"
        )
        found.append(Cause(said, str(row.before), why=why, fix=fix, seconds=float("inf")))
    return found


def _training(looked: Look) -> list[Cause]:
    """What the recorded steps did not train, trained on the same data or to no number, or averaged without need."""
    held, wrong = looked.held, float("inf")
    seen = held["seen"]
    found = [*trained.broken(seen), *trained.gradients(held["parameters"]), *trained.batches(seen)]
    return [_of(one, wrong) for one in found] + [
        _of(one, WASTED) for one in trained.synchronized(held["averages"])
    ]


def _recompiles(looked: Look) -> list[Cause]:
    limits = [row for row in looked.met if LIMIT in row.reason]
    compiles = {(row.rank, row.id): row for row in looked.whole.compiles}
    found = []
    every: list[Again | Break] = [*looked.again, *limits]
    for name in dict.fromkeys(row.name for row in every):
        mine = [row for row in looked.again if row.name == name]
        over = [row for row in limits if row.name == name]
        (rank, _), *_ = Counter(row.rank for row in mine or over).most_common(1)
        ids = dict.fromkeys(row.compile for row in every if (row.name, row.rank) == (name, rank))
        took = sum(phase.seconds for id_ in ids for phase in phases(compiles[rank, id_]))
        count = sum(row.rank == rank for row in mine)
        count += len({(one.file, one.line, one.resume) for one in (compiles[rank, id_] for id_ in ids)})
        where = Counter(row.place for row in mine or over).most_common(1)[0][0]
        often = Counter(form(row.reason) for row in mine).most_common(1)
        reason = next((row.reason for row in mine if form(row.reason) == often[0][0]), "")
        own, library = _own_line(looked, name, where)
        title, verb, why = name, "was", looked.guard_of(name, rank) if mine else ""
        fixes = [_fix(reason), *(_fix(row.reason) for row in mine)]
        # one of several reasons may be one to act on
        fix = next((one for one in fixes if one and not one.startswith("expected")), fixes[0])
        settled = not over and _settled(looked, name, rank)
        serves = looked.unit == "forward" or (settled and looked.held["parameters"].empty)
        if fix.endswith(_ZERO_ONE) and serves:
            fix = _SERVED
        elif settled and (count <= FEW or fix == _OBJECTS):
            fix = f"expected once each: the recorded {looked.unit}s run all {count}"
        elif over and fix.startswith("expected"):
            fix = ""
        if selects := [row.reason for row in mine if _SELECTS.search(row.reason)]:
            of = source(selects[0].rpartition(" == ")[0])  # a size may change along with it
            fix = _CHOICES if over else _CHOICE.format(of)
        if where.startswith(_SHARED) and len(objects := _sharing(looked, rank)):
            title, own, library = _titles(objects), objects["place"].iloc[0], ""
            verb = "were" if len(objects.drop_duplicates(["name", "place"])) > 1 else "was"
            if count <= len(objects):
                why = f"torch compiles one function, `{name}`, for its own modules, once for each object"
                fix = "compile one module of your own that calls them" if over else "expected for each object"
        if mine and all(row.reason.startswith(DECORATES) for row in mine):
            why = "it decorates several functions, and torch compiles the decorator's code for each of them"
            fix = "" if over else "expected once for each"
        graph = any(row.operators for row in looked.compiled if (row.name, row.rank) == (name, rank))
        done, doing = ("compiled", "compiling") if graph else ("traced", "tracing")  # it has no graph
        said = f"{title} {verb} {done} {counted(count, 'times')}"
        if over:
            said += f", then given up: the {LIMIT}{_in_python(looked, name)}"
        cost = f"{took:.2f} s of {doing} in the whole run" if took else "unknown: the compile did not end"
        cost += ", and the rest runs in Python" if over else ""
        value = bool(mine) and all(from_break(row.reason) for row in mine)
        resumed = name.partition(", resumed at ")[2] if value else ""
        found.append(Cause(said, own, library, why, cost, fix, seconds=took, resumed=resumed, stands="in"))
    return found


def _settled(looked: Look, name: str, rank: int) -> bool:
    """Whether recorded steps run all that a rank compiled of a function, and compile it no more."""
    ran = {row.id: row for row in looked.record.compiles if row.rank == rank}
    ids = [row.id for row in looked.compiled if (row.name, row.rank) == (name, rank)]
    return all(id_ in ran and ran[id_].runs and not ran[id_].during for id_ in ids)


def _sharing(looked: Look, rank: int) -> pd.DataFrame:
    """The called objects of a rank for which torch compiles one and the same function."""
    made = looked.held["asked"]
    return made[made["shared"] & (made["calls"] > 0) & (made["rank"] == rank)]


def _titles(objects: pd.DataFrame) -> str:
    """The names of objects, each with its line where there are several."""
    each = list(dict.fromkeys(zip(objects["name"], objects["place"], strict=True)))
    if len(each) == 1:
        return each[0][0] + (f" of {len(objects)} objects" if len(objects) > 1 else "")
    shown = ", ".join(f"{name} at {place}" for name, place in each[:4])
    return shown + (f" and {len(each) - 4} more" if len(each) > 4 else "")


def _resumed(again: list[Cause], broke: list[Cause]) -> tuple[list[Cause], list[Cause]]:
    """Put the recompiles of code that resumes after a break, and guards on the value from there, with that break."""
    left = []
    for one in again:
        at = next(
            (i for i, b in enumerate(broke) if one.resumed and b.place.partition(" ")[0] == one.resumed), None
        )
        if at is None:
            left.append(one)
            continue
        b = broke[at]
        broke[at] = replace(
            b,
            said=f"{b.said}; {one.said}",
            why="; ".join(filter(None, [b.why.rstrip("."), one.why])),
            cost=f"{b.cost}; {one.cost}",
            seconds=b.seconds + one.seconds,
        )
    return left, broke


def _own_line(looked: Look, name: str, where: str) -> tuple[str, str]:
    """The program's line for a function, and the library's where the function stands in one."""
    if "/" not in where.partition(":")[0]:
        return where, ""
    at = (row.place for row in looked.met if f"`{name}`" in row.report)
    lines = [place for place in at if place and "/" not in place.partition(":")[0]]
    made = [place for place in looked.held["asked"]["place"].unique() if place]
    return (lines or (made if len(made) == 1 else [""]))[0], where


def _in_python(looked: Look, name: str) -> str:
    """How many calls a step of compiled objects run in Python, in words; '' where that is not known."""
    made = looked.held["asked"]
    mine = made[made["name"] == name]
    runs = looked.regions()
    runs = runs[runs["name"] == name]
    if mine.empty or not looked.steps:
        return ""
    rank = int(mine["rank"].iloc[0])
    calls = mine[mine["rank"] == rank]["recorded"].sum() / looked.steps
    compiled = runs[f"rank {rank}"].sum() if len(runs) else 0.0
    return (
        f"; {round(calls - compiled, 2):g} of {round(calls, 2):g} calls a {looked.unit} run in Python"
        if calls > compiled
        else ""
    )


def _breaks(looked: Look) -> list[Cause]:
    found = []
    run = int(looked.provenance.get("steps", looked.steps) or 0)
    shared = splits(looked.record)
    for row in looked.breaks.itertuples():
        if row.owner:
            continue
        seconds = 0.0 if pd.isna(row.outside_ms) else row.outside_ms * run / 1e3
        otherwise = "move this out of the compiled function, or write it with tensor operations"
        fix = _fix(row.reason) or _fix(row.explanation, otherwise)
        cost = f"{looked.cost(row)} outside compiled code"
        mine = [one for one in shared if (one.reason, one.place) == (row.reason, row.place)]
        why = ". ".join(filter(None, [row.explanation.rstrip("." * bool(mine)), *_shared(mine, looked)]))
        fix = "; ".join(dict.fromkeys(filter(None, [fix, *(one.fix for one in mine)])))
        found.append(
            Cause(f"graph break: {row.reason}", row.place, row.library, why, cost, fix, row.hints, seconds)
        )  # fmt: skip
    return found


def _shared(mine: Sequence[Split], looked: Look) -> list[str]:
    """Say which calls run in pieces for a break without need; on which rank, where not on all."""
    ranks: dict[str, list[int]] = {}
    for one in mine:
        ranks.setdefault(one.said(looked.unit), []).append(one.rank)
    every = len(looked.record.profiled)
    return [
        f"On rank {', '.join(map(str, at))}, {said}" if len(at) < every else said
        for said, at in ranks.items()
    ]


def _given_up(looked: Look) -> list[Cause]:
    given_up = [row for row in looked.met if row.kind == "gave-up" and LIMIT not in row.reason]
    found = []
    first: dict[tuple[str, str, str], Break] = {}
    for row in given_up:
        first.setdefault((row.name, row.reason, row.place), row)
    for row in first.values():
        library = library_of(row)
        if owner_of(row) or (GENERATOR in row.reason and library.endswith(f"({row.name})")):
            continue
        cost = "unknown: Python runs the function, and what it calls may be compiled"
        said = f"{row.name} was given up: {row.reason}"
        fix = _fix(row.reason, "move the break out of the loop or block that cannot be resumed")
        hints = "\n".join(row.hints)
        found.append(Cause(said, row.place, library, row.explanation, cost, fix, hints))
    return found


def shown(found: Sequence[Cause]) -> list[str]:
    """Return causes as numbered lines of text, the first `OPEN` in full."""
    lines = []
    for number, cause in enumerate(found, 1):
        first, *rest = cause.lines() if number <= OPEN else [cause.line]
        lines += [f"{number}. {first}", *(f"   {line}" for line in rest)]
    return lines
