"""Lesson 17, `since.coordinate`: an operator that asks for the rank when the graph runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit import lessons, torch_compat
from labkit.ranks import Ranks
from labkit.ranks.output import quietly
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["coordinate"]

SIZES = (2, 3)  # ranks
FORM = (
    "my_operator() is called without arguments on each rank and returns what own_rows calls as operator(x); its result "
    "is an int64 tensor of shape (1,), or an int"
)


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """On two and on three ranks: one graph, equal texts, and rank 0's graph is right on every rank."""
    for size in SIZES:
        with Ranks(size, device="cpu", backend="gloo", quiet=True) as some:
            made = on_ranks(some, quietly, _look, attempt, hint=FORM)
            for rank, one in enumerate(made):
                if one["error"]:
                    raise Mistake(f"{size} ranks, rank {rank}: {one['error']}", _hint(one))
            right = [one["right"] for one in made]
            texts = {one["text"] for one in made}
            finding = (
                f"{size} ranks: {len(texts)} different graphs; each rank with its own graph is right: {right}"
            )
            if not all(right):
                raise Mistake(
                    finding,
                    "the operator's result belongs to another rank, or a number of the trace has taken its place",
                )
            if len(texts) > 1:
                raise Mistake(
                    finding, "the rank is a number in Python there, and Python's numbers become constants"
                )
            used = [one["used"] for one in made]
            if not all(used):
                raise Mistake(
                    f"{size} ranks: equal texts; each rank with rank 0's graph is right: {used}",
                    "the text is the same, and the graph holds rank 0's answer in a tensor: nothing asks when it runs",
                )
            if made[0]["promised"]:
                raise Mistake(
                    f"{size} ranks: {made[0]['promised']}",
                    "the compiler knows only what the fake makes: it needs the shape and dtype of the real result",
                )
        say(f"{size} ranks: one graph, equal texts, and rank 0's graph is right on every rank")


def _hint(found: dict[str, Any]) -> str:
    if "register_fake" in found["whole"] or "fake impl" in found["whole"]:
        return "the compiler asks the operator for the shape and dtype of its result: register_fake"
    if found["unsupported"] and "returned non-Tensor" in found["whole"]:
        return (
            "the fake of an operator that returns an int must not know the number: "
            "torch.library.get_ctx().new_dynamic_size(); or return a tensor of shape (1,)"
        )
    if found["unsupported"]:
        return "fullgraph=True refuses what Dynamo cannot put into a graph: it has to be an operator"
    return FORM


def _inputs() -> torch.Tensor:
    return torch.arange(4.0 * dist.get_world_size()).reshape(-1, 2)


def _symbols() -> Any:
    """An operator that returns an int gives a symbol, and no break."""
    return torch_compat.patched(
        "dynamo.config", capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    )


def _look(attempt: Attempt) -> dict[str, Any]:
    """The graph of this rank; where all have the same text, whether rank 0's graph is right here."""
    operator, every = attempt(), [dict[str, Any]() for _ in range(dist.get_world_size())]
    mine = _compile(operator)
    dist.all_gather_object(every, mine)
    if not any(one["error"] for one in every) and len({one["text"] for one in every}) == 1:
        mine["used"], mine["promised"] = _use(operator, every[0]["graph"])
    return mine


def _compile(operator: Any) -> dict[str, Any]:
    program, x = lessons.program("since"), _inputs()
    try:
        with _symbols():
            graphs, y = program.captured(program.own_rows, x, operator, fullgraph=True)
    except Exception as error:
        line = next((one for one in str(error).splitlines() if one.strip()), "")
        name = type(error).__name__
        return {"error": f"{name}: {line[:110]}", "whole": str(error), "unsupported": name == "Unsupported"}
    return {
        "error": "",
        "text": "\n".join(map(program.plain_text, graphs)),
        "right": bool(torch.equal(y, 2 * x)),
        "graph": pickle.dumps(graphs[0]),
    }


class _Compared(torch.fx.Interpreter):
    """Runs a graph, and compares each result with what the compiler was told of it."""

    differs = ""

    def run_node(self, n: torch.fx.Node) -> Any:
        real, told = super().run_node(n), n.meta.get("val")
        if isinstance(real, torch.Tensor) and isinstance(told, torch.Tensor) and not self.differs:
            shapes = zip(told.shape, real.shape, strict=True) if told.dim() == real.dim() else [(-1, 0)]
            if told.dtype != real.dtype or any(type(a) is int and a != b for a, b in shapes):
                names = [f"{one.dtype} {tuple(one.shape)}" for one in (told, real)]
                self.differs = f"the fake of {n.target} has {names[0]}, and its result {names[1]}"
        return real


def _use(operator: Any, pickled: bytes) -> tuple[bool, str]:
    """Compile again, and run rank 0's graph with this rank's inputs: whether it is right, and what a fake has wrong."""
    program, x, other = lessons.program("since"), _inputs(), pickle.loads(pickled)
    torch_compat.dynamo_reset()
    compared: list[_Compared] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compared.append(_Compared(graph))

        def run(*given: Any) -> Any:
            compared[-1].run(*given)
            return other.forward(*given)

        return program.make_boxed_func(run)

    with _symbols(), torch.no_grad():
        backend = program.aot_autograd(fw_compiler=compiler)
        y = torch.compile(program.own_rows, backend=backend, fullgraph=True)(x, operator)
    return bool(y.shape == x.shape and torch.equal(y, 2 * x)), next(
        (c.differs for c in compared if c.differs), ""
    )


coordinate = Exercise(
    "since.coordinate",
    "an operator that asks for the rank",
    "medium",
    15,
    (
        "a function that registers and returns the operator, on each rank",
        "one graph without a break (`fullgraph=True`)",
        "the same text on all ranks",
        "rank 0's graph is right on every rank, on two and on three ranks",
    ),
    judge,
)
