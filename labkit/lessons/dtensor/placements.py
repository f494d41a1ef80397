"""DTensor's placements on live ranks: what redistributing and multiplying does to them, forward and backward."""

from __future__ import annotations

import logging
from typing import Any

import pandas as pd
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode

from labkit.lessons.dtensor.declared import PLACEMENTS as ABOUT
from labkit.lessons.shared.options import chosen
from labkit.ranks import Ranks, here
from labkit.report import PerRank, Report, provenance
from labkit.torch_compat import on_collective

VIEW = "labkit.lessons.dtensor.placements_figures:figure"
PLACED = ("R", "S(0)", "S(1)", "P")
WORDS = {"R": "Replicate()", "S(0)": "Shard(0)", "S(1)": "Shard(1)", "P": "Partial()"}
UP = 1e-4  # float32 sums of a few products


def run(ranks: Ranks, *, side: int = 4, talk: bool = False) -> Report:
    """Every redistribution between placements, and every product of two placed matrices, checked against whole ones.

    side: rows and columns of the matrices, a multiple of the ranks. Tables: `redistribute` (from, to, collectives
    forward, backward for a gradient placed as the result, and for a Partial one where the result is whole, bytes
    that go into the forward's on a rank, whether values and gradients are right), `holds` (from, to, rank,
    before, after: the local tensors), `matmul` (x, w, y, collectives of the product, of making it whole, and of
    backward, right). Raises ValueError for a side that does not split, RankError when a rank fails.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = run(ranks)
    >>> report.frame.query("start == 'S(0)' and end == 'R'")["forward"].item()
    'all_gather_into_tensor'
    """
    if not isinstance(side, int) or isinstance(side, bool) or side < 1 or side % ranks.world_size:
        raise ValueError(f"side must be a whole multiple of the {ranks.world_size} ranks, got {side!r}")
    found = ranks.run(_measure, side, talk, timeout=120)
    settings = {"backend": ranks.backend, "device": ranks.device, "world_size": ranks.world_size}
    return _report(found, ranks.label, provenance(**settings, side=side))


# --- on a rank ---


def _measure(side: int, talk: bool) -> dict[str, Any]:
    me = here()
    # gloo has no all-to-all, and torch says so once: Shard(0) to Shard(1) is then an all-gather and a cut
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    mesh = init_device_mesh(torch.device(me.device).type, (me.world_size,))
    # whole numbers also where each rank holds a share of them
    x = torch.arange(1.0, side * side + 1, device=me.device).view(side, side) * sum(range(me.world_size + 1))
    w = torch.arange(side * side, device=me.device).view(side, side).sub(5).remainder(7).float()
    moves = [_move(x, mesh, start, end) for start in PLACED for end in PLACED]
    if talk and me.rank == 0:
        print(f"{len(moves)} redistributions done; {len(PLACED) ** 2} products next", flush=True)
    return {"moves": moves, "products": [_product(x, w, mesh, a, b) for a in PLACED for b in PLACED]}


def place(x: Any, mesh: Any, placed: str) -> Any:
    """A whole tensor as a DTensor with one of PLACED, without communication; Partial is an equal share on each rank.

    Raises ValueError for another placement.
    """
    rank, size = mesh.get_local_rank(), mesh.size()
    if placed == "R":
        return DTensor.from_local(x.clone(), mesh, [Replicate()], run_check=False)
    if placed == "P":  # what each rank has is a summand: rank r's share is r + 1 of 1 + 2 + ... + size
        share = (rank + 1) / (size * (size + 1) / 2)
        return DTensor.from_local(x * share, mesh, [Partial()], run_check=False)
    chosen([placed], PLACED, "placement")
    dim = int(placed[2])
    return DTensor.from_local(x.chunk(size, dim)[rank].clone(), mesh, [Shard(dim)], run_check=False)


def placement(placed: str) -> Any:
    """The torch placement of one of PLACED."""
    return {"R": Replicate(), "P": Partial(), "S(0)": Shard(0), "S(1)": Shard(1)}[placed]


def short(placements: Any) -> str:
    """A DTensor's placement on its only mesh axis as one of PLACED: 'R', 'S(0)', 'S(1)' or 'P'."""
    one = placements[0]
    return f"S({one.dim})" if one.is_shard() else "R" if one.is_replicate() else "P"


def heard(action: Any) -> tuple[Any, list[str], int]:
    """An action's result, the collectives that CommDebugMode counts, and the bytes that went into them here."""
    sizes: list[int] = []
    with CommDebugMode() as counted, on_collective(lambda _, nbytes: sizes.append(nbytes)):
        result = action()
    names = [str(op).rpartition(".")[2] for op, n in counted.get_comm_counts().items() for _ in range(int(n))]
    return result, names, sum(sizes)


def _move(x: Any, mesh: Any, start: str, end: str) -> dict[str, Any]:
    leaf = place(x, mesh, start).requires_grad_()
    found: dict[str, Any] = {"start": start, "end": end, "before": leaf.to_local().tolist()}
    try:
        moved, found["forward"], found["bytes"] = heard(
            lambda: leaf.redistribute(placements=[placement(end)])
        )
    except Exception as error:  # what DTensor refuses is a row of the table
        return found | {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    found["after"] = moved.to_local().tolist()
    found["right"] = bool(torch.allclose(moved.full_tensor(), x, atol=UP))
    incoming = torch.ones_like(x).cumsum(0)
    weight = place(incoming, mesh, "R" if end == "P" else end)
    _, found["backward"], _ = heard(lambda: moved.backward(weight))
    grad = leaf.grad
    found["gradient"] = short(grad.placements)
    found["gradient_right"] = bool(torch.allclose(grad.full_tensor(), incoming, atol=UP))
    if end == "R":  # each rank's loss gives a summand of the gradient, as where every rank has its own batch
        again = place(x, mesh, start).requires_grad_()
        local = again.redistribute(placements=[placement(end)]).to_local(grad_placements=[placement("P")])
        _, found["backward_partial"], _ = heard(lambda: local.backward(torch.ones_like(local)))
        total = again.grad.full_tensor()
        found["gradient_right"] &= bool(torch.allclose(total, torch.full_like(x, mesh.size()), atol=UP))
    return found


def _product(x: Any, w: Any, mesh: Any, a: str, b: str) -> dict[str, Any]:
    """One product with its backward pass; the loss is the sum of the squares of the whole result."""
    left, right = place(x, mesh, a).requires_grad_(), place(w, mesh, b).requires_grad_()
    found: dict[str, Any] = {"x": a, "w": b}
    y, found["forward"], found["bytes"] = heard(lambda: left @ right)
    found["y"] = short(y.placements)
    whole, found["to_whole"], _ = heard(lambda: y.redistribute(placements=[placement("R")]))
    loss = whole.square().sum()
    _, found["backward"], _ = heard(loss.backward)
    x0, w0 = x.clone().requires_grad_(), w.clone().requires_grad_()
    (x0 @ w0).square().sum().backward()
    grads = [(left, x0), (right, w0)]
    found["gradients"] = " ".join(short(mine.grad.placements) for mine, _ in grads)
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


def _report(found: PerRank[dict[str, Any]], label: str, settings: dict[str, Any]) -> Report:
    first = found[0]
    moves, products = [], []
    for i, move in enumerate(first["moves"]):
        every = [one["moves"][i] for one in found]
        row = {"start": move["start"], "end": move["end"]}
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
        row["right"] = all(one.get("right", True) and one.get("gradient_right", True) for one in every)
        moves.append(row)
    for i, product in enumerate(first["products"]):
        every = [one["products"][i] for one in found]
        row = {name: product[name] for name in ("x", "w", "y", "bytes", "gradients")}
        row |= {name: said(product[name]) for name in ("forward", "to_whole", "backward")}
        row["right"] = all(one["right"] and one["gradient_right"] for one in every)
        products.append(row)
    holds = [
        (move["start"], move["end"], rank, move["before"], move["after"])
        for rank, one in found.items()
        for move in one["moves"]
        if "after" in move
    ]
    tables: dict[str, pd.DataFrame] = {
        "redistribute": pd.DataFrame(moves),
        "matmul": pd.DataFrame(products)[
            ["x", "w", "forward", "y", "to_whole", "backward", "gradients", "bytes", "right"]
        ],
        "holds": pd.DataFrame(holds, columns=["start", "end", "rank", "before", "after"]),
    }
    wrong = sum(not right for name in ("redistribute", "matmul") for right in tables[name]["right"])
    checked = sum(len(tables[name]) for name in ("redistribute", "matmul"))
    notes = [f"{checked - wrong} of {checked} results and gradients are those of the whole matrices"]
    return Report("placements", ABOUT.title, label, tables, [], settings, notes, VIEW)
