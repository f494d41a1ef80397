"""Exercise: the three methods of a small FSDP's unit that wait, reduce, and give out gradients."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course.fsdp.hooks import small_fsdp
from labkit import lessons
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too

__all__ = ["unit"]

BLOCKS = 3
UNITS = 1 + BLOCKS
STEPS, TOLERANCE = 2, 1e-5
GATHERS = 1 + 2 * BLOCKS  # the root once, each block twice
STORAGE = (
    "give the storage its size before you fill it, weight.untyped_storage().resize_(bytes), and fill this one: with "
    "weight.data = new the weight has another storage, and autograd has saved the old one, which is empty"
)
TENSORS = (Tensor, nn.Parameter)
RESET = "set back what you counted, for the next step"
RAISED = {
    "attribute 'wait'": "return at once from `use` where the unit is whole: nothing is being gathered then",
    "NoneType": "count the gradients: another weight of the unit may come last",
    "mat1 and mat2": "the module still has its piece: setattr(owner, name, weight) puts the whole weight there",
    "inplace": "autograd has saved the weight: write into weight.data, which leaves its version alone",
}
HINT = "MyUnit(Unit) has three methods: use(self), ready(self, weight) and finish(self)"


class _Block(nn.Module):
    """Its second weight is used first where `turned`, so that gradients come in another order."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.one = nn.Linear(24, 12, bias=False) if turned else nn.Linear(12, 24, bias=False)
        self.two = nn.Linear(12, 24, bias=False) if turned else nn.Linear(24, 12, bias=False)
        self.turned = turned

    def forward(self, x: Tensor) -> Tensor:
        first, last = (self.two, self.one) if self.turned else (self.one, self.two)
        return x + last(first(x).relu())


class _Model(nn.Module):
    """(batch, 64) -> (batch, 12)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, 12, bias=False), nn.Linear(12, 12, bias=False)
        self.blocks = nn.ModuleList(_Block(bool(i % 2)) for i in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _seeded() -> _Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(14)
        return _Model()


@on_three_too
def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Gradients of two steps, what is sent and when, and what is whole after the step."""
    try:
        seen = list(on_ranks(ranks, _train, attempt, hint=HINT))
    except Mistake as mistake:
        if "SIGSEGV" in mistake.seen:  # written to a storage of size zero
            raise Mistake(mistake.seen, STORAGE) from None
        raise
    for rank, found in enumerate(seen):
        if found["error"]:
            raise Mistake(f"rank {rank}: {found['error']}", found["hint"])
    for rank, found in enumerate(seen):
        if found["whole"][0]:
            raise Mistake(
                f"rank {rank}: {found['whole'][0]} of {found['weights']} weights are whole after a step",
                "once the unit's gradients are in a buffer of their own, nobody needs its weights: free()",
            )
        if found["late"][0]:
            raise Mistake(
                f"rank {rank}: {found['late'][0]} of {found['weights']} weights are whole when backward is over",
                "with the gradients of a unit in a buffer its weights are not needed: free them in `ready`",
            )
        if found["whole"][1]:
            raise Mistake(
                f"rank {rank}: step 1 frees all weights, step 2 leaves {found['whole'][1]} whole",
                RESET,
            )
        _gradients(rank, found, len(seen))
        if found["kept"]:
            raise Mistake(
                f"rank {rank}: right gradients; {found['kept']} whole gradients are kept after the step",
                "the buffer has a copy: set weight.grad to None",
            )
    found = seen[0]
    sent = found["sent"]
    reduced = [name for name in sent if "gather" not in name]
    if len(reduced) != UNITS or not all("reduce_scatter" in name for name in reduced):
        raise Mistake(
            f"right gradients, and {len(reduced)} messages for them that were seen: "
            f"{', '.join(sorted(set(reduced))) or 'no call of a dist.reduce_scatter'}",
            f"one reduce-scatter for each of the {UNITS} units: all gradients of a unit in one buffer, and a rank gets "
            "the sum for its own rows only",
        )
    if len(sent) - len(reduced) != GATHERS:
        raise Mistake(
            f"right gradients, and {len(sent) - len(reduced)} all-gathers a step instead of {GATHERS}",
            "`gather` has sent the rows: `use` waits for that, sets self.is_whole, and sets self.gathering to None",
        )
    if found["in backward"] < UNITS:
        raise Mistake(
            f"right gradients; {found['in backward']} of {UNITS} reduce-scatters start in backward",
            "start it in `ready`, when the last gradient of the unit is there: `finish` only waits",
        )
    if found["blocking"]:
        raise Mistake(
            f"right gradients; {found['blocking']} reduce-scatters block backward",
            "async_op=True in `ready`, and the wait in `finish`: so backward goes on meanwhile",
        )
    if found["early"]:
        raise Mistake(
            f"right gradients; {found['early']} reduce-scatters are waited for in backward",
            "wait in `finish`: so backward goes on while a message is under way",
        )
    # a buffer of the pieces is a half of this on two ranks, a third on three
    if found["more"] > 0.2 * found["whole bytes"]:
        raise Mistake(
            f"right gradients; a step leaves {found['more']:,} bytes; all whole weights have {found['whole bytes']:,}",
            "keep no copy of a whole weight or gradient: `free` drops self.rows, `finish` drops what was sent and what "
            "was received",
        )
    say(
        f"{len(sent) - len(reduced)} gathers, {UNITS} reduce-scatters, started in backward; gradients as alone"
    )


def _gradients(rank: int, found: dict[str, Any], ranks: int) -> None:
    for step, factor in enumerate(found["times"], 1):
        said = f"rank {rank}, step {step}: gradients are {factor:.3g} times the right ones"
        if factor == 1.0:
            continue
        if step > 1 and found["kept"] and factor == factor:
            raise Mistake(said, "autograd adds to a gradient that is there: set weight.grad to None")
        if factor == ranks:
            raise Mistake(said, "a reduce-scatter sums, and the loss is a mean over ranks: divide once")
        if factor * ranks == 1.0:
            raise Mistake(said, "they are divided twice by the number of ranks")
        if found["missing"]:
            raise Mistake(
                f"rank {rank}: {found['missing']} pieces have no gradient", "`finish` sets piece.grad"
            )
        if step > 1:
            raise Mistake(
                f"rank {rank}: step 1 is right, step {step} is not",
                RESET,
            )
        raise Mistake(
            f"rank {rank}: gradients are not a multiple of the right ones",
            "something is read before a wait (what is received is there after it), or a rank's rows are not in its "
            "line: a weight's gradient, viewed as (ranks, -1), has line r for rank r",
        )


class _Sent:
    """A message whose result is there only once somebody has waited for it."""

    def __init__(self, arrive: Callable[[], None], waited: Callable[[], None]):
        self._arrive: Callable[[], None] | None = arrive
        self._waited = waited

    def wait(self, timeout: Any = None) -> bool:
        if self._arrive is not None:
            self._arrive()
            self._waited()
            self._arrive = None
        return True

    def is_completed(self) -> bool:
        return self.wait()

    def get_future(self) -> _Sent:
        return self


@contextmanager
def _noted(log: list[tuple[str, bool]], waits: list[str]) -> Iterator[None]:
    """Note the collectives, and their waits; what async ones receive is nan until it was waited for."""

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(dist, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            later = kwargs.pop("async_op", False)
            log.append((name, bool(later)))
            if not later:
                return real(*args, **kwargs)
            given = kwargs.get(
                "output", kwargs.get("tensor_list", kwargs.get("tensor", args[0] if args else None))
            )
            outputs: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
            real(*args, **kwargs)
            results = [output.clone() for output in outputs]
            for output in outputs:
                output.fill_(float("nan"))

            def arrive() -> None:
                for output, result in zip(outputs, results, strict=True):
                    output.copy_(result)

            return _Sent(arrive, lambda: waits.append(name))

        return call

    names = ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_reduce")
    newer = [name for name in ("all_gather_single", "reduce_scatter_single") if hasattr(dist, name)]
    patches: dict[str, Any] = {name: noted(name) for name in (*names, *newer)}
    with mock.patch.multiple(dist, **patches):
        yield


def _train(attempt: Any) -> dict[str, Any]:
    program = lessons.program("fsdp")
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = program.batch(12)
    model, alone = _seeded(), _seeded()
    program.replicated(alone, x, y).backward()
    right = {name: p.grad for name, p in alone.named_parameters()}
    names = [name for name, _ in model.named_parameters()]
    log: list[tuple[str, bool]] = []
    waits: list[str] = []
    made: list[Any] = []

    def make(module: Any) -> Any:
        made.append(attempt(module))
        return made[-1]

    found: dict[str, Any] = {
        "error": "",
        "times": [],
        "missing": 0,
        "whole": [],
        "late": [],
        "weights": len(names),
    }
    with _noted(log, waits):
        finish = small_fsdp(model, make)
        found["whole bytes"] = sum(p.nbytes for p in alone.parameters())
        before = _alive()
        for _ in range(STEPS):
            log.clear()
            waits.clear()
            model.zero_grad()
            for unit in made:
                for piece in unit.pieces:
                    piece.grad = None
            try:
                program.mean_over_ranks(model, x, y).backward()
                found["late"].append(_whole(made))
                found["early"] = sum("reduce" in name for name in waits)
                found["in backward"] = sum("gather" not in name for name, _ in log)
                finish()
            except NotImplementedError:
                raise
            except (RuntimeError, AttributeError, TypeError) as error:
                found["error"] = str(error).partition("\n")[0][:110]
                found["hint"] = next((hint for word, hint in RAISED.items() if word in str(error)), STORAGE)
                if found["times"] == [1.0] and "NoneType" in str(error):
                    found["hint"] = RESET
                return found
            wholes = [weight for unit in made for weight in unit.wholes]
            found["whole"].append(_whole(made))
            gradients = {name: p.grad for name, p in model.named_parameters()}
            found["missing"] = sum(gradient is None for gradient in gradients.values())
            found["times"].append(_times(gradients, right, rank, size))
            found["more"] = _alive() - before - sum(g.nbytes for g in gradients.values() if g is not None)
    found["sent"] = [name for name, _ in log]
    found["blocking"] = sum(not later and "reduce" in name for name, later in log)
    found["kept"] = sum(weight.grad is not None for weight in wholes)
    return found


def _alive() -> int:
    """The bytes of all tensors that Python holds, each storage once."""
    gc.collect()
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage() for t in gc.get_objects() if type(t) in TENSORS
    }
    return sum(storage.nbytes() for storage in storages.values())


def _whole(units: list[Any]) -> int:
    return sum(weight.untyped_storage().nbytes() > 0 for unit in units for weight in unit.wholes)


def _times(gradients: dict[str, Any], right: dict[str, Any], rank: int, size: int) -> float:
    """The number by which the right gradients have to be multiplied to give these, rounded; nan if there is none."""
    factors = []
    for name, expected in right.items():
        mine, got = expected.chunk(size)[rank], gradients.get(name)
        if got is None or got.shape != mine.shape:
            return float("nan")
        factor = float((got * mine).sum() / mine.square().sum())
        if not float((got - factor * mine).abs().max()) <= TOLERANCE * float(mine.abs().max()):
            return float("nan")
        factors.append(round(factor, 3))
    return factors[0] if len(set(factors)) == 1 else float("nan")


unit = Exercise(
    "fsdp.unit",
    "use, ready and finish of a small FSDP's unit",
    "medium",
    15,
    (
        "the gradients of one process, also in the second step and on three ranks",
        "one reduce-scatter a unit, started in backward, waited for in `finish`",
        "no weight whole after backward, and no buffer kept after `finish`",
    ),
    judge,
    takes="class",
)
