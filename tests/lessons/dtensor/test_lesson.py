"""Lesson 10's cells: placements and gradients against whole matrices, four routes against the unsharded model."""

from __future__ import annotations

import logging

import lesson_cells
import pandas as pd
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

import labkit
from labkit import lessons
from labkit.report import Report

program = lessons.program("dtensor")


def mesh():
    return init_device_mesh("cpu", (2,))


def moves():
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # gloo has no all-to-all for it
    x, where, names = 3 * torch.arange(1.0, 17).view(4, 4), mesh(), program.PLACEMENTS
    return {(start, end): program.move(x, where, start, end) for start in names for end in names}


@pytest.fixture(scope="module")
def moved(ranks):
    return ranks.run(moves)


def test_every_value_and_gradient_is_that_of_the_whole_matrix(moved):
    for found in moved.values():
        right = {pair: one["right"] for pair, one in found.items() if "refused" not in one}
        assert all(right.values()) and len(right) == 13


@pytest.mark.parametrize(
    ("start", "end", "forward", "backward", "summed"),
    [
        ("S(0)", "R", ["all_gather_into_tensor"], [], ["reduce_scatter_tensor"]),
        ("P", "R", ["all_reduce"], [], []),
        ("R", "R", [], [], ["all_reduce"]),
        ("P", "S(1)", ["reduce_scatter_tensor"], ["all_gather_into_tensor"], None),
        ("R", "S(0)", [], ["all_gather_into_tensor"], None),
    ],
)
def test_a_redistribution_costs_what_it_must(moved, start, end, forward, backward, summed):
    row = moved[0][start, end]
    assert (row["forward"], row["backward"], row.get("backward_partial")) == (forward, backward, summed)


@pytest.mark.slow
def test_the_report_of_placements_has_both_tables_and_each_product_is_right(ranks):
    """The cells compare each product with the whole matrices; columns then rows need nothing in between."""
    names = {"ranks": ranks, "labkit": labkit, "pd": pd, "logging": logging, "Report": Report}
    names |= {"reveal": lambda *found: "", "init_device_mesh": init_device_mesh}
    cells = ("dt-03", "dt-05", "dt-06", "dt-08", "dt-11", "dt-18", "dt-19", "dt-20", "dt-24")
    space = lesson_cells.run("10_dtensor_or_explicit", *cells, DIM=32, TOKENS=4, SIDE=6, **names)
    products = space["tables"]["matmul"].set_index("x @ w")
    assert products.loc["R", "S(1)"] == "S(1)" and products.loc["S(1)", "S(0)"] == "P"
    assert len(space["tables"]["redistribute"]) == 9 and space["tables"]["redistribute"]["right"].all()


def shares(kind, *sizes):
    whole, x, found = program.seeded(getattr(program, kind), 64, *sizes), program.sample(64, 4), {}
    where = mesh()
    with torch.no_grad():
        expected = whole(x)
        for route, make in program.ROUTES.items():
            model = make(whole, where)
            held = [getattr(p, "to_local", lambda p=p: p)().numel() for p in model.parameters()]
            y, names, _ = program.counted(lambda model=model: model(x))
            found[route] = sum(held), float((y - expected).abs().max()), len(names)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sizes", "sums"), [("MLP", (), 1), ("Block", (4,), 2)])
def test_all_routes_hold_the_same_shares_and_give_the_same_numbers(ranks, kind, sizes, sums):
    for found in ranks.run(shares, kind, *sizes).values():
        assert len({held for held, _, _ in found.values()}) == 1
        assert max(error for _, error, _ in found.values()) < 1e-4
        assert {called for _, _, called in found.values()} == {sums}


def edges():
    """Whole numbers in Partial and Shard: what each rank holds of a 4 by 4 matrix."""
    x, where = 3 * torch.arange(1.0, 17).view(4, 4), mesh()
    return {name: program.place(x, where, name).to_local().tolist() for name in program.PLACEMENTS}


def test_ranks_hold_what_the_placement_says(ranks):
    x = [[3.0 * (4 * i + j + 1) for j in range(4)] for i in range(4)]
    zero, one = ranks.run(edges).values()
    assert zero["R"] == one["R"] == x and one["S(0)"] == x[2:] and zero["S(1)"] == [row[:2] for row in x]
    assert zero["P"] == [[v / 3 for v in row] for row in x]


def compiled_routes():
    """Of each compiled route: graphs, collectives in them, and the largest difference from the whole MLP."""
    from labkit import torch_compat

    whole, x, found = program.seeded(program.MLP, 64), program.sample(64, 4), {}
    where = mesh()
    with torch.no_grad():
        for route in "bcd":
            torch.compiler.reset()
            graphs = []
            run = torch.compile(
                program.ROUTES[route](whole, where),
                backend=torch_compat.aot_backend(graphs, []),
                fullgraph=True,
            )
            error = float((run(x) + 0 - whole(x)).abs().max())
            nodes = [str(node.target) for graph in graphs for node in graph.graph.nodes]
            found[route] = (
                len(graphs),
                sum("_c10d_functional.all_reduce" in name for name in nodes),
                error < 1e-4,
            )
    return found


@pytest.mark.slow
def test_compiled_routes_are_one_graph_with_the_same_collectives(ranks):
    assert ranks.run(compiled_routes).same() == dict.fromkeys("bcd", (1, 1, True))
