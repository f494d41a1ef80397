"""DTensor's placements on live ranks: what redistributing and multiplying does to them, forward and backward."""

from __future__ import annotations

import logging
from typing import Any

import pandas as pd
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate

from course.dtensor.declared import PLACEMENTS as ABOUT
from course.shared.program import choose as choose_program
from labkit.ranks import Ranks, here
from labkit.report import PerRank, Report, provenance

NEEDED = ("PLACEMENTS", "move", "place", "counted", "short")  # what is taken of the program
VIEW = "course.dtensor.placements_figures:figure"
UP = 1e-4  # float32 sums of a few products


def run(ranks: Ranks, *, side: int = 4, program: Any = None, talk: bool = False) -> Report:
    """Every redistribution between placements, and every product of two placed matrices, checked against whole ones.

    Tables: `redistribute` (from, to, collectives forward, backward for a gradient placed as the result, and for a
    Partial one where the result is whole, bytes that go into the forward's on a rank, whether values and gradients are
    right), `matmul` (x, w, y, collectives of the product, of making it whole, and of backward, right).

    Args:
        ranks: the ranks.
        side: rows and columns of the matrices, a multiple of the ranks.
        program: the cells of lesson 10, as a module or a mapping such as a notebook's `globals()`; None is the lesson's
            own.
        talk: print progress.

    Returns:
        The report.

    Raises:
        ValueError: the side does not split.
        RankError: a rank failed.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = run(ranks)
    >>> report.frame.query("start == 'S(0)' and end == 'R'")["forward"].item()
    'all_gather_into_tensor'
    """
    if not isinstance(side, int) or isinstance(side, bool) or side < 1 or side % ranks.world_size:
        raise ValueError(f"side must be a whole multiple of the {ranks.world_size} ranks, got {side!r}")
    ours = choose_program("dtensor", program, NEEDED)
    found = ranks.run(_measure, ours.code, side, talk, timeout=120)
    settings = {"backend": ranks.backend, "device": ranks.device, "world_size": ranks.world_size}
    return _report(found, ranks.label, provenance(**settings, side=side, program=ours.digest), ours.notes)


# --- on a rank ---


def _measure(program: Any, side: int, talk: bool) -> dict[str, Any]:
    me = here()
    # gloo has no all-to-all, and torch says so once: Shard(0) to Shard(1) is then an all-gather and a cut
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    mesh = init_device_mesh(torch.device(me.device).type, (me.world_size,))
    # whole numbers also where each rank holds a share of them
    x = torch.arange(1.0, side * side + 1, device=me.device).view(side, side) * sum(range(me.world_size + 1))
    w = torch.arange(side * side, device=me.device).view(side, side).sub(5).remainder(7).float()
    placed = program.PLACEMENTS
    moves = [program.move(x, mesh, start, end) for start in placed for end in placed]
    if talk and me.rank == 0:
        print(f"{len(moves)} redistributions done; {len(placed) ** 2} products next", flush=True)
    return {"moves": moves, "products": [_product(program, x, w, mesh, a, b) for a in placed for b in placed]}


def _product(program: Any, x: Any, w: Any, mesh: Any, a: str, b: str) -> dict[str, Any]:
    """One product with its backward pass; the loss is the sum of the squares of the whole result."""
    left, right = (program.place(*one).requires_grad_() for one in ((x, mesh, a), (w, mesh, b)))
    found: dict[str, Any] = {"x": a, "w": b}
    y, found["forward"], found["bytes"] = program.counted(lambda: left @ right)
    found["y"] = program.short(y.placements)
    whole, found["to_whole"], _ = program.counted(lambda: y.redistribute(placements=[Replicate()]))
    loss = whole.square().sum()
    _, found["backward"], _ = program.counted(loss.backward)
    x0, w0 = x.clone().requires_grad_(), w.clone().requires_grad_()
    (x0 @ w0).square().sum().backward()
    grads = [(left, x0), (right, w0)]
    found["gradients"] = " ".join(program.short(mine.grad.placements) for mine, _ in grads)
    found["right"] = bool(torch.allclose(whole.to_local(), x @ w, atol=UP))
    found["gradient_right"] = all(
        bool(torch.allclose(mine.grad.full_tensor(), theirs.grad, rtol=UP)) for mine, theirs in grads
    )
    return found


# --- in the kernel ---


def said(names: list[str]) -> str:
    """Collectives by name, a number before those that come several times.

    >>> said(["all_reduce", "all_reduce", "all_gather"]), said([])
    ('2 all_reduce, all_gather', '-')
    """
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{n} {name}" if n > 1 else name for name, n in counts.items()) or "-"


def _report(found: PerRank[dict[str, Any]], label: str, settings: dict[str, Any], notes: list[str]) -> Report:
    first = found[0]
    moves, products = [], []
    for i, move in enumerate(first["moves"]):
        every = [one["moves"][i] for one in found]
        row = {name: move[name] for name in ("start", "end")}
        if "refused" in move:
            row |= {
                "forward": "refused",
                "backward": "-",
                "backward_partial": "",
                "bytes": 0,
                "gradient": "-",
            }
            row["why"] = move["refused"]
        else:
            row |= {"forward": said(move["forward"]), "backward": said(move["backward"])}
            row |= {"backward_partial": said(move["backward_partial"]) if "backward_partial" in move else ""}
            row |= {"bytes": move["bytes"], "gradient": move["gradient"], "why": ""}
        row["right"] = all(one.get("right", True) for one in every)
        moves.append(row)
    for i, product in enumerate(first["products"]):
        every = [one["products"][i] for one in found]
        row = {name: product[name] for name in ("x", "w", "y", "bytes", "gradients")}
        row |= {name: said(product[name]) for name in ("forward", "to_whole", "backward")}
        row["right"] = all(one["right"] and one["gradient_right"] for one in every)
        products.append(row)
    tables: dict[str, pd.DataFrame] = {
        "redistribute": pd.DataFrame(moves),
        "matmul": pd.DataFrame(products)[
            ["x", "w", "forward", "y", "to_whole", "backward", "gradients", "bytes", "right"]
        ],
    }
    wrong = sum(not right for name in ("redistribute", "matmul") for right in tables[name]["right"])
    checked = sum(len(tables[name]) for name in ("redistribute", "matmul"))
    notes = [*notes, f"{checked - wrong} of {checked} results and gradients are those of the whole matrices"]
    return Report("placements", ABOUT.title, label, tables, [], settings, notes, VIEW)
