"""Lesson 10: f and g, the placement of a product, split tokens, and gradients of jobs on four ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from course.shared.jobs import judge_jobs
from labkit import lessons
from labkit.ranks import Ranks, here
from labkit.ranks.output import quietly
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import on_collective

__all__ = ["pair", "placement", "reports", "sequence"]

program = lessons.program("dtensor")
place, short, counted, PLACED = program.place, program.short, program.counted, tuple(program.PLACEMENTS)

DIM, BLOCKS, TOKENS = 24, 2, 12  # another model than the lesson's: twelve heads of two features


# --- f and g ---


def judge_pair(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Gradients of a model with the reader's f and g against one process: eager, compiled, on a part of four ranks."""
    for compiled in (False, True):
        _judge_pair(attempt, ranks, "ranks", compiled)
        say(f"{'compiled' if compiled else 'eager'}: every gradient is that of one process")
    _on_four_too(lambda four, axes: _judge_pair(attempt, four, axes, False))


def _judge_pair(attempt: Attempt, ranks: Ranks, axes: str, compiled: bool) -> None:
    hint = "it is called as my_pair(mesh), and returns f and g; each takes a tensor and returns one"
    per_rank = on_ranks(ranks, quietly, _with_pair, attempt, axes, compiled, hint=hint)
    for rank, found in enumerate(per_rank):
        mode = "compiled" if compiled else "eager"
        finding = f"rank {rank}, {mode}: {_finding(found)}"
        if not found["value"]:
            raise Mistake(
                finding, "forward first: g adds up the partial sums over the ranks, f changes nothing"
            )
        if found["wrong"]:
            raise Mistake(finding, _why_wrong(found["kinds"], found["size"]))
        if not compiled and found["sent"] != 4 * BLOCKS:
            raise Mistake(
                f"{finding}; {found['sent']} collectives for {BLOCKS} blocks",
                "the numbers are right and something is sent for nothing: f communicates in backward only, g in "
                f"forward only; that is {4 * BLOCKS}",
            )


def _on_four_too(judge: Callable[[Ranks, str], None]) -> None:
    """Judge the model split over four ranks as well, and over two and two: `mesh` is not always all ranks."""
    with Ranks(4, device="cpu", backend="gloo", quiet=True) as four:
        for axes in ("part", "ranks"):
            try:
                judge(four, axes)
            except Mistake as mistake:
                where = "four ranks, the model split over two and two" if axes == "part" else "four ranks"
                hint = (
                    "`mesh` is not always all ranks, nor always two: use its group" if axes == "part" else ""
                )
                raise Mistake(f"{where}: {mistake.seen}", hint or mistake.hint) from mistake


def _why_wrong(kinds: dict[str, float | None], size: int) -> str:
    weights = {name: k for name, k in kinds.items() if _cut(name) is not None}
    last = [k for name, k in weights.items() if name.startswith(f"{BLOCKS - 1}.down")]
    if last == [1.0] and kinds[f"{BLOCKS - 1}.norm2.weight"] == round(1 / size, 3):
        return "1 / n of the right gradient at the last norm: partial sums are added up, and you divided"
    if last == [1.0]:
        return (
            "the weights at the end are right, and what lies before the split layers is not: each rank's gradient of "
            "f's input is a partial sum"
        )
    if last == [float(size)]:
        return (
            f"{size} x the right gradient: every rank has the whole gradient of g's result already; do not add it up "
            "once more"
        )
    if last and last[0] is not None:
        return f"{last[0]:g} x the right gradient at the last layer: g's backward passes the gradient on as it is"
    return "go from the loss back: which gradient comes to g, and is it whole on each rank?"


def _finding(found: dict[str, Any]) -> str:
    if not found["value"]:
        return "the output is not that of one process"
    wrong, total = found["wrong"], len(found["kinds"])
    named = ", ".join([*wrong[:4], *(["..."] if len(wrong) > 4 else [])])
    return f"{len(wrong)} of {total} gradients are wrong: {named}" if wrong else "right"


def _cut(name: str) -> int | None:
    return program.CUT.get(name.split(".")[1]) if "." in name else None


def _mesh(axes: str = "ranks") -> Any:
    device, n = torch.device(here().device).type, here().world_size
    if axes == "part":
        return init_device_mesh(device, (2, 2), mesh_dim_names=("apart", "tp"))["tp"]
    return init_device_mesh(device, (n,), mesh_dim_names=("tp",))


def _one_process() -> tuple[Any, Any, Any]:
    """The whole model after a step, its input and its output."""
    whole = program.model(DIM, BLOCKS).to(here().device)
    x = program.sample(DIM, TOKENS).to(here().device).requires_grad_()
    y = whole(x)
    y.square().mean().backward()
    return whole, x, y.detach()


def _kinds(mine: Any, whole: Any, mesh: Any, inputs: tuple[Any, Any] | None) -> dict[str, float | None]:
    """Of each gradient the multiple of the right one that it is; None for no multiple, or no gradient."""
    found = {}
    for (name, p), q in zip(mine.named_parameters(), whole.parameters(), strict=True):
        cut = _cut(name)
        piece = q.grad if cut is None else q.grad.chunk(mesh.size(), cut)[mesh.get_local_rank()]
        found[name] = None if p.grad is None else program.multiple(p.grad + 0, piece)
    if inputs:
        found["input"] = None if inputs[0] is None else program.multiple(inputs[0] + 0, inputs[1])
    return found


def _with_pair(attempt: Attempt, axes: str, compiled: bool) -> dict[str, Any]:
    mesh = _mesh(axes)
    whole, x, right = _one_process()
    mine = program.split(program.model(DIM, BLOCKS).to(here().device), mesh, attempt)
    data = x.detach().clone().requires_grad_()
    torch.compiler.reset()

    def loss_of(x: Any) -> Any:
        y = mine(x)
        return y.square().mean(), y

    sent: list[str] = []
    if compiled:  # counting is for eager: it intercepts each operation, and nothing would be compiled
        loss, y = torch.compile(loss_of, backend="aot_eager", fullgraph=True)(data)
        loss.backward()
    else:
        with on_collective(lambda name, nbytes: sent.append(name)):
            loss, y = loss_of(data)
            loss.backward()
    kinds = _kinds(mine, whole, mesh, (data.grad, x.grad))
    value = y.shape == right.shape and torch.allclose(y.detach() + 0, right, atol=1e-4)
    wrong = [name for name, k in kinds.items() if k is None or abs(k - 1) > 1e-3]
    return {"value": bool(value), "kinds": kinds, "wrong": wrong, "sent": len(sent), "size": mesh.size()}


# --- placements ---


def judge_placement(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The reader's rule for all sixteen pairs of placements, against what DTensor does on the ranks."""
    hint = "it is called as my_placement(x, w) with two of 'R', 'S(0)', 'S(1)', 'P'; it makes no DTensor"
    for seen in on_ranks(ranks, quietly, _products, attempt, hint=hint):
        for row in seen:
            pair, said, real = f"x {row['x']}, w {row['w']}", row["said"], row["real"]
            if row["asked"]:
                raise Mistake(
                    f"{pair}: it makes a DTensor", "write the rule down: it gets two words, and no tensor"
                )
            if said is not None and said not in PLACED:
                raise Mistake(f"{pair}: it says {said!r}", f"one of {', '.join(map(repr, PLACED))}, or None")
            if said != real:
                raise Mistake(f"{pair}: {said!r} is not right", _why_not(row["x"], row["w"], real))
    say("16 pairs of placements: right for each of them")


def _why_not(x: str, w: str, real: str | None) -> str:
    if x == w == "P":
        return "(a + b) @ (c + d) is not a @ c + b @ d"
    if "P" in (x, w) and real == "P":
        return "a product is linear in each factor: (a + b) @ w is a @ w + b @ w"
    if real is None:
        return (
            "which entries of the product, or which terms of them, can a rank work out from what it holds? Do the "
            "results of all ranks make the product?"
        )
    if (x, w) == ("S(1)", "S(0)"):
        return "columns of x meet rows of w: which terms of each sum can a rank work out?"
    if (x, w) in (("S(1)", "R"), ("R", "S(0)")):
        return (
            "a rank has the replicated factor whole, and can cut it: which part of it belongs to the part that the "
            "rank has of the other factor?"
        )
    return "rows of x give rows of the product, columns of w give columns: look at which of them a rank holds"


def _products(attempt: Attempt) -> list[dict[str, Any]]:
    mesh = _mesh()
    x, w = (torch.arange(144.0, device=here().device).view(12, 12) + i for i in (0, 3))
    rows = []
    for a in PLACED:
        for b in PLACED:
            said, asked = _without_dtensors(attempt, a, b)
            y, names = counted(lambda a=a, b=b: place(x, mesh, a) @ place(w, mesh, b))
            real = None if names else short(y.placements)
            rows.append({"x": a, "w": b, "said": said, "asked": asked, "real": real})
    return rows


def _without_dtensors(attempt: Attempt, x: str, w: str) -> tuple[Any, bool]:
    """What the attempt says, and whether it tried to make a DTensor, which it cannot."""

    def refused(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no DTensor can be made here")

    with mock.patch.object(DTensor, "__new__", side_effect=refused) as made:
        try:
            return attempt(x, w), made.called
        except Exception:
            if not made.called:
                raise
            return None, True


# --- split tokens ---


def judge_sequence(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Sequence parallelism: output and gradients against one process, and the collectives."""
    _judge_sequence(attempt, ranks, "ranks", say)
    _on_four_too(lambda four, axes: _judge_sequence(attempt, four, axes, lambda finding: None))


def _judge_sequence(attempt: Attempt, ranks: Ranks, axes: str, say: Callable[[str], None]) -> None:
    hint = (
        "it is called as my_sequence(model, mesh), and returns the model, which takes and returns "
        "(batch, tokens / n, dim)"
    )
    for rank, found in enumerate(on_ranks(ranks, quietly, _by_tokens, attempt, axes, hint=hint)):
        names = ", ".join(f"{n} {name}" for name, n in found["sent"].items()) or "no collective"
        finding = f"rank {rank}: forward {names}"
        if not found["model"]:
            raise Mistake(f"it returns {found['returned']}", "return the model")
        if found["shape"] != (2, TOKENS // found["size"], DIM):
            raise Mistake(
                f"{finding}; the output is {found['shape']}",
                "the output is this rank's tokens, as the input was",
            )
        if not found["value"]:
            gathers = found["sent"].get("all_gather", 0)
            why = (
                "`leave` has all tokens already: there is nothing to gather, and something to add up"
                if gathers > 2 * BLOCKS and "reduce_scatter" not in found["sent"]
                else "a rank's attention and hidden features need all tokens: gather them before the split layers, "
                "along dimension 1"
                if "all_gather" not in found["sent"]
                else "each rank has a partial sum of every token's result: add up while you scatter, along dimension 1"
            )
            raise Mistake(f"{finding}; the output is not that of one process", why)
        if found["sent"] != {"all_gather": 2 * BLOCKS, "reduce_scatter": 2 * BLOCKS}:
            raise Mistake(
                f"{finding}, for {BLOCKS} blocks",
                "an all-reduce gives everybody all tokens, and you keep some: one gather at `enter`, one scatter of "
                "the sum at `leave`",
            )
        if found["wrong"]:
            finding += f"; {len(found['wrong'])} gradients are wrong: {', '.join(found['wrong'][:4])}"
            raise Mistake(finding, _why_wrong_tokens(found["wrong"], found["kinds"], found["size"]))
        if found["wrong twice"]:
            raise Mistake(
                f"{finding}; after a second backward {len(found['wrong twice'])} gradients are wrong: "
                f"{', '.join(found['wrong twice'][:4])}",
                "p.grad has the first backward's sum already, and you add that up over the ranks again: add up what a "
                "backward brings, before it is accumulated",
            )
        say(f"{finding}; every gradient is that of one process")


def _why_wrong_tokens(wrong: Iterable[str], kinds: dict[str, float | None], size: int) -> str:
    if all("norm" in name for name in wrong):
        if all(kinds[name] == round(1 / size, 3) for name in wrong):
            return "1 / n of the right gradient: the job's loss is the sum over the ranks, no mean"
        return (
            "a norm's weight is on every rank, and each rank's gradient comes from its own tokens only: the right "
            "gradient is the sum over the ranks"
        )
    if all(_cut(name) is not None for name in wrong):
        return (
            "only split weights are wrong: each rank has another part of them, and its gradient is complete: there is "
            "nothing to add up"
        )
    return (
        "the backward of a gather before split layers adds up and scatters, for each rank has a partial sum of the "
        "gradient; the backward of the scatter gathers"
    )


def _by_tokens(attempt: Attempt, axes: str) -> dict[str, Any]:
    mesh = _mesh(axes)
    n, me = mesh.size(), mesh.get_local_rank()
    whole, x, right = _one_process()
    mine = program.split(program.model(DIM, BLOCKS).to(here().device), mesh, lambda mesh: (program.same,) * 2)
    mine = attempt(mine, mesh)
    found: dict[str, Any] = {"size": n, "sent": {}, "returned": type(mine).__name__}
    found["model"] = isinstance(mine, torch.nn.Module)
    if not found["model"]:
        return found
    data = x.detach().chunk(n, 1)[me].clone().requires_grad_()
    names: list[str] = []
    with on_collective(lambda name, nbytes: names.append(_plain(name))):
        y = mine(data)
    found["sent"] = {name: names.count(name) for name in sorted(set(names))}
    found["shape"] = tuple(getattr(y, "shape", ()))
    expected = right.chunk(n, 1)[me]
    found["value"] = y.shape == expected.shape and bool(torch.allclose(y.detach() + 0, expected, atol=1e-4))
    if not found["value"]:
        return found
    (y.square().sum() / right.numel()).backward()
    kinds = found["kinds"] = _kinds(mine, whole, mesh, (data.grad, x.grad.chunk(n, 1)[me]))
    found["wrong"] = [name for name, k in kinds.items() if k is None or abs(k - 1) > 1e-3]
    (mine(data).square().sum() / right.numel()).backward()  # the same once more: all gradients double
    twice = _kinds(mine, whole, mesh, None)
    found["wrong twice"] = [name for name, k in twice.items() if k is None or abs(k - 2) > 1e-3]
    return found


def _plain(name: str) -> str:
    name = name.strip("_").removesuffix("_coalesced").removesuffix("_base")
    return name.removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single")


# --- jobs ---

PLACES = ("0.attention", "0.mlp", "1.attention", "1.mlp", "norms", "all weights")
OPERATORS = ("f", "g", "sum over tp", "sum over dp")
JOBS = {
    "A": ({0, 1, 2, 3}, "1.attention", "f"),
    "B": ({0, 1, 2, 3}, "norms", "sum over tp"),
    "C": ({1, 3}, "all weights", "sum over dp"),
}
FORM = 'return {"A": ([ranks], "where", "operator"), "B": ..., "C": ...}, with the words above the stub'


def judge_reports(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Ranks, place and operator of three recorded jobs; what is wrong in any job is said at once."""
    judge_jobs(attempt, ranks, say, _report_hint, JOBS, PLACES, OPERATORS, FORM, size=4)


def _report_hint(job: str, on: set[int], where: str, operator: str) -> str:
    right_on, right_where, right_operator = JOBS[job]
    if where != right_where:
        return {
            "A": "backward runs from the last block to the first: find the first gradient that is not right",
            "B": "read the `sum` column: which gradients are not right on a rank, and what do they have in common?",
            "C": "no sum makes it right, and it is no single pair of layers: compare the columns with each other",
        }[job]
    if operator != right_operator:
        return {
            "A": "the last layers of this branch are right: which gradient passes its two ends, and where does it "
            "become a partial sum?",
            "B": "a missing f or g would make split weights wrong too; only parameters that every rank has whole are "
            "wrong, and their sum over all four ranks is right",
            "C": "ranks 0 and 2 have the right gradient, and ranks 1 and 3 do not: which ranks are in one group of "
            "each axis, and what do ranks of this group not share?",
        }[job]
    if on != right_on:
        return "look at every rank's column: which of them are not 1?"
    return ""


pair = Exercise(
    "dtensor.pair",
    "f and g",
    "medium",
    12,
    (
        "every gradient is that of one process, for a replicated loss",
        "in eager and compiled",
        "each of f and g communicates in one direction only",
    ),
    judge_pair,
)
placement = Exercise(
    "dtensor.placement",
    "the placement of a product",
    "medium",
    8,
    ("the placement of x @ w for all sixteen pairs", "None where DTensor has to communicate"),
    judge_placement,
)
sequence = Exercise(
    "dtensor.sequence",
    "split tokens",
    "hard",
    12,
    (
        "output and every gradient as in one process, after one backward and after two",
        "forward, for each branch one all-gather and one reduce-scatter, nothing else",
        "return the model",
    ),
    judge_sequence,
)
reports = Exercise(
    "dtensor.reports",
    "gradients of three jobs",
    "medium",
    8,
    ("for each job the ranks, the place, and the missing operator",),
    judge_reports,
)
