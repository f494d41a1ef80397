"""Exercise: the three methods of a small FSDP's unit that wait, reduce, and give out gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist

from course.fsdp.hooks import small_fsdp
from labkit import lessons
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too

__all__ = ["unit"]

SIZES = (12, 24, 3, 12)
UNITS = 1 + SIZES[2]
STEPS, TOLERANCE = 2, 1e-5
GATHERS = 1 + 2 * SIZES[2]  # the root once, each block twice
STORAGE = "give the storage its size before you fill it: weight.untyped_storage().resize_(bytes)"
RAISED = {
    "inplace": "autograd has saved the weight: write into weight.data, which leaves its version alone",
}
HINT = "MyUnit(Unit) has three methods: use(self), ready(self, weight) and finish(self)"


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
                "set back what you counted, for the next step",
            )
        _gradients(rank, found, len(seen))
    found = seen[0]
    sent = found["sent"]
    reduced = [name for name in sent if "gather" not in name]
    if len(reduced) != UNITS or not all("reduce_scatter" in name for name in reduced):
        raise Mistake(
            f"right gradients, and {len(reduced)} messages for them: {', '.join(sorted(set(reduced))) or 'none'}",
            f"one reduce-scatter for each of the {UNITS} units: all gradients of a unit in one buffer, and a rank gets "
            "the sum for its own rows only",
        )
    if len(sent) - len(reduced) != GATHERS:
        raise Mistake(
            f"right gradients, and {len(sent) - len(reduced)} all-gathers a step instead of {GATHERS}",
            "`gather` has sent the rows already: `use` waits for that",
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
    if found["kept"]:
        raise Mistake(
            f"right gradients; {found['kept']} whole gradients are kept after the step",
            "the buffer has a copy: set weight.grad to None",
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
                "set back what you counted, for the next step",
            )
        raise Mistake(
            f"rank {rank}: gradients are not a multiple of the right ones",
            "something is read before a wait (what is received is there after it), or a rank's rows are not in its "
            "line: a weight's gradient, viewed as (ranks, -1), has line r for rank r",
        )


class _Sent:
    """A message whose result is there only once somebody has waited for it."""

    def __init__(self, arrive: Callable[[], None]):
        self._arrive: Callable[[], None] | None = arrive

    def wait(self, timeout: Any = None) -> bool:
        if self._arrive is not None:
            self._arrive()
            self._arrive = None
        return True

    def is_completed(self) -> bool:
        return self.wait()

    def get_future(self) -> _Sent:
        return self


@contextmanager
def _noted(log: list[tuple[str, bool]]) -> Iterator[None]:
    """Note the collectives; what async ones receive is nan until it was waited for."""

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

            return _Sent(arrive)

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
    model = program.seeded(*SIZES)
    names = [name for name, _ in model.named_parameters()]
    log: list[tuple[str, bool]] = []
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
    with _noted(log):
        finish = small_fsdp(model, make)
        for _ in range(STEPS):
            log.clear()
            model.zero_grad()
            for unit in made:
                for piece in unit.pieces:
                    piece.grad = None
            try:
                program.mean_over_ranks(model, x, y).backward()
                found["late"].append(_whole(made))
                found["in backward"] = sum("gather" not in name for name, _ in log)
                finish()
            except NotImplementedError:
                raise
            except RuntimeError as error:
                found["error"] = str(error).partition("\n")[0][:110]
                found["hint"] = next((hint for word, hint in RAISED.items() if word in str(error)), STORAGE)
                return found
            wholes = [weight for unit in made for weight in unit.wholes]
            found["whole"].append(_whole(made))
            gradients = {name: p.grad for name, p in model.named_parameters()}
            found["missing"] = sum(gradient is None for gradient in gradients.values())
            right = dict(zip(names, program.one_process(x, y, *SIZES), strict=True))
            found["times"].append(_times(gradients, right, rank, size))
    found["sent"] = [name for name, _ in log]
    found["blocking"] = sum(not later and "reduce" in name for name, later in log)
    found["kept"] = sum(weight.grad is not None for weight in wholes)
    return found


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
        "no weight whole after backward",
    ),
    judge,
    takes="class",
)
