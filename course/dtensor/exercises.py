"""Lesson 10: the placement of a product, and a gated MLP on split tokens by both roads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from course.shared.costs import ring_bytes
from labkit import lessons
from labkit.ranks import Ranks, here
from labkit.ranks.output import quietly
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import on_collective

__all__ = ["bytes", "explicit", "placement"]

program = lessons.program("dtensor")
place, short, counted, PLACED = program.place, program.short, program.counted, tuple(program.PLACEMENTS)

TOKENS, DIM, HIDDEN = 8, 32, 128
FUNCTIONAL = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")


def judge_placement(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The reader's rule for all sixteen pairs of placements, against what DTensor does on the ranks."""
    hint = "it is called as my_placement(x, w) with two of 'R', 'S(0)', 'S(1)', 'P'"
    for rank, seen in enumerate(on_ranks(ranks, quietly, _products, attempt, hint=hint)):
        for row in seen:
            pair = f"x {row['x']}, w {row['w']}"
            said, real = row["said"], row["real"]
            if said is not None and said not in PLACED:
                raise Mistake(f"{pair}: it says {said!r}", f"one of {', '.join(map(repr, PLACED))}, or None")
            if said == real:
                continue
            finding = f"rank {rank}, {pair}: it says {said!r}, and it is {real!r}"
            raise Mistake(finding, _why_not(row["x"], row["w"], said, real))
    say("16 pairs of placements: right for each of them")


def _why_not(x: str, w: str, said: str | None, real: str | None) -> str:
    if x == w == "P":
        return "(a + b) @ (c + d) is not a @ c + b @ d: two Partials have to be summed before they are multiplied"
    if "P" in (x, w) and real == "P":
        return (
            "a product is linear in each factor: a summand times a whole matrix is a summand of the product"
        )
    if real is None:
        return "it cannot be worked out from what a rank has: DTensor communicates, so the answer is None"
    if (x, w) == ("S(1)", "S(0)"):
        return "columns of x meet rows of w: each rank has some terms of every sum, so its product is Partial"
    if (x, w) in (("S(1)", "R"), ("R", "S(0)")):
        return (
            "the replicated factor is cut for nothing: each rank takes the part of it that its share needs, "
            "and has a summand of the product"
        )
    return "rows of x give rows of the product, columns of w give columns: look at which of them a rank holds"


def _products(attempt: Attempt) -> list[dict[str, Any]]:
    mesh = _mesh()
    x, w = (torch.arange(16.0).view(4, 4) + i for i in (0, 3))
    rows = []
    for a in PLACED:
        for b in PLACED:
            y, names, _ = counted(lambda a=a, b=b: place(x, mesh, a) @ place(w, mesh, b))
            rows.append(
                {"x": a, "w": b, "said": attempt(a, b), "real": None if names else short(y.placements)}
            )
    return rows


def judge_explicit(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """A gated MLP on split tokens with functional collectives: right numbers, one gather and one scatter."""
    hint = "it is called as my_explicit(x, gate, up, down, group) with this rank's plain tensors"
    _judge_explicit(attempt, ranks, say, hint)
    with Ranks(4, device="cpu", backend="gloo", quiet=True) as four:
        try:
            _judge_explicit(attempt, four, lambda finding: None, hint)
        except Mistake as mistake:
            raise Mistake(
                f"on four ranks, the layer split over two and two: {mistake.seen}",
                "`group` is not always the world: give it to each collective",
            ) from mistake


def _judge_explicit(attempt: Attempt, ranks: Ranks, say: Callable[[str], None], hint: str) -> None:
    for rank, found in enumerate(on_ranks(ranks, quietly, _by_hand, attempt, hint=hint)):
        names = [_plain(name) for name in found["collectives"]]
        finding = f"rank {rank}: collectives: {', '.join(names) or 'none'}"
        if found["shape"] != (TOKENS // found["size"], DIM):
            raise Mistake(
                f"{finding}; the result is {found['shape']}", "return this rank's tokens, as x came"
            )
        if not found["right"]:
            why = (
                "each rank has a summand of every token's result: add up the summands after the last product"
                if "all_gather" in names
                else "each rank has some hidden features of *all* tokens: gather the tokens before the first product"
            )
            raise Mistake(f"{finding}; other numbers than the whole layer", why)
        if any("reduce" in name and "scatter" not in name for name in names):
            raise Mistake(
                finding, "an all-reduce gives everybody all tokens, and you keep a share: scatter the sum"
            )
        if not all(name in FUNCTIONAL for name in names):
            raise Mistake(
                finding,
                "the numbers are right, and functional collectives are asked for: a tensor in and a tensor out, from "
                "torch.distributed._functional_collectives",
            )
        if sorted(names) != ["all_gather", "reduce_scatter"]:
            raise Mistake(
                finding,
                "x is used twice: gather it once, before; nothing else has to travel but the summands",
            )
        say(finding)


def _by_hand(attempt: Attempt) -> dict[str, Any]:
    mesh = _mesh()
    if mesh.size() == 4:
        mesh = init_device_mesh(mesh.device_type, (2, 2), mesh_dim_names=("apart", "layer"))["layer"]
    x, up, down = _matrices()
    gate = up.flip(0)
    mine = [
        place(w, mesh, how).to_local()
        for w, how in ((x, "S(0)"), (gate, "S(1)"), (up, "S(1)"), (down, "S(0)"))
    ]
    with torch.no_grad():
        y, names, _ = counted(lambda: attempt(*mine, mesh.get_group()))
        expected = place((F.gelu(x @ gate) * (x @ up)) @ down, mesh, "S(0)").to_local()
    shape = tuple(getattr(y, "shape", ()))
    right = shape == tuple(expected.shape) and bool(torch.allclose(y + 0, expected, atol=1e-4))
    return {"collectives": names, "shape": shape, "right": right, "size": mesh.size()}


def judge_bytes(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """A gated MLP, tokens and weights split at rest: at most the bytes of one gather and one scatter of its tokens."""
    size = len(ranks)
    tokens = TOKENS * DIM * 4
    target = ring_bytes("all_gather", size, tokens // size) + ring_bytes("reduce_scatter", size, tokens)
    hint = "it is called as my_mlp(x, gate, up, down) with DTensors, and returns one"
    for rank, found in enumerate(on_ranks(ranks, quietly, _thrifty, attempt, hint=hint)):
        if found["kind"] != "DTensor":
            raise Mistake(
                f"rank {rank}: it returns a {found['kind']}", "return a DTensor, split by tokens as x is"
            )
        sent = sum(ring_bytes(_plain(name), size, nbytes) for name, nbytes in found["sent"])
        said = ", ".join(f"{_plain(name)} {nbytes} B" for name, nbytes in found["sent"]) or "none"
        finding = f"rank {rank}: {said}: {sent:.0f} B sent in a ring, the target is {target:.0f} B"
        if not found["right"]:
            raise Mistake(f"{finding}; other numbers than the whole matrices", "first right, then cheap")
        if found["placement"] != "S(0)":
            raise Mistake(f"{finding}; the result is {found['placement']}", "y has to be Shard(0), as x came")
        if sent > target:
            raise Mistake(finding, _why_dear(found["sent"]))
        say(finding)


def _why_dear(sent: list[tuple[str, int]]) -> str:
    weight = DIM * HIDDEN  # bytes of half a weight, for two ranks, are twice this number
    if any("gather" in name and nbytes >= weight for name, nbytes in sent):
        return "the weights travel, and they are the largest things here: bring the tokens to the weights instead"
    if any("all_reduce" in name for name, _ in sent):
        return "an all-reduce gives everybody all of y, and you keep a share of it: a reduce-scatter is half of that"
    if any("scatter" not in name and nbytes > TOKENS * DIM * 4 // 2 for name, nbytes in sent):
        return (
            "the hidden values travel: let them stay where they are made, and sum what comes out at the end"
        )
    return "something travels twice: x is used twice, gather it once, before; y is scattered once"


def _plain(name: str) -> str:
    return name.removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single")


def _thrifty(attempt: Attempt) -> dict[str, Any]:
    mesh, sent = _mesh(), []
    x, up, down = _matrices()
    gate = up.flip(0)
    columns = [place(w, mesh, "S(1)") for w in (gate, up)]
    placed = place(x, mesh, "S(0)"), *columns, place(down, mesh, "S(0)")
    with torch.no_grad(), on_collective(lambda name, nbytes: sent.append((name, nbytes))):
        y = attempt(*placed)
    found: dict[str, Any] = {"kind": type(y).__name__, "sent": sent}
    if found["kind"] != "DTensor":
        return found
    right = torch.allclose(y.full_tensor(), (F.gelu(x @ gate) * (x @ up)) @ down, atol=1e-4)
    return found | {"placement": short(y.placements), "right": bool(right)}


def _matrices() -> tuple[Any, Any, Any]:
    seed = torch.Generator().manual_seed(0)
    shapes = ((TOKENS, DIM), (DIM, HIDDEN), (HIDDEN, DIM))
    x, up, down = (torch.randn(*shape, generator=seed).to(here().device) for shape in shapes)
    return x, up / DIM**0.5, down / HIDDEN**0.5


def _mesh() -> Any:
    return init_device_mesh(torch.device(here().device).type, (here().world_size,))


placement = Exercise(
    "dtensor.placement",
    "the placement of a product",
    "medium",
    10,
    ("the placement of x @ w for all sixteen pairs", "None where DTensor has to communicate"),
    judge_placement,
)
explicit = Exercise(
    "dtensor.explicit",
    "a layer by the first road",
    "medium",
    15,
    ("the numbers of the whole layer", "one all-gather and one reduce-scatter, nothing else"),
    judge_explicit,
)
bytes = Exercise(
    "dtensor.bytes",
    "a target of bytes",
    "hard",
    15,
    ("right numbers, split by tokens", "no more bytes than one gather and one reduce-scatter of the tokens"),
    judge_bytes,
)
