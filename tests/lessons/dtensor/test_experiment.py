"""DTensor or explicit: placements and gradients against whole matrices, four routes against the unsharded model."""

from __future__ import annotations

import pytest
import torch

import labkit
from course.dtensor import experiment as routes
from course.dtensor import on_ranks as routes_ranks
from course.dtensor import placements
from labkit import lessons


@pytest.fixture(scope="module")
def placed(ranks):
    return placements.run(ranks)


@pytest.fixture(scope="module")
def report():
    with labkit.Ranks(2, device="cpu", backend="shm", timeout=240, quiet=True) as fast:
        yield routes.run(fast, mlp=("tiny",), block=(), rounds=2)


# --- placements ---


@pytest.mark.slow
def test_every_value_and_gradient_is_that_of_the_whole_matrices(placed):
    assert placed.tables["redistribute"]["right"].all() and placed.tables["matmul"]["right"].all()
    assert placed.notes == ["32 of 32 results and gradients are those of the whole matrices"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "end", "forward", "backward", "summed"),
    [
        ("S(0)", "R", "all_gather_into_tensor", "-", "reduce_scatter_tensor"),
        ("P", "R", "all_reduce", "-", "-"),
        ("R", "R", "-", "-", "all_reduce"),
        ("P", "S(1)", "reduce_scatter_tensor", "all_gather_into_tensor", ""),
        ("R", "S(0)", "-", "all_gather_into_tensor", ""),
    ],
)
def test_a_redistribution_costs_what_it_must(placed, start, end, forward, backward, summed):
    row = placed.frame.query("start == @start and end == @end").iloc[0]
    assert (row["forward"], row["backward"], row["backward_partial"]) == (forward, backward, summed)


@pytest.mark.slow
def test_columns_then_rows_are_one_sum(placed):
    products = placed.tables["matmul"].set_index(["x", "w"])
    assert tuple(products.loc[("R", "S(1)"), ["forward", "y"]]) == ("-", "S(1)")
    assert tuple(products.loc[("S(1)", "S(0)"), ["forward", "y", "to_whole"]]) == ("-", "P", "all_reduce")
    assert set(products.loc[products["forward"] != "-", "bytes"]) <= {
        32,
        64,
    }  # one half or a whole of 4 x 4 floats


@pytest.mark.slow
def test_figures_of_placements_say_what_they_draw(placed):
    assert "S(0), R: all_gather, back: nothing" in placed.figure().summary
    assert "x, w" not in placed.figure("matmul").summary
    with pytest.raises(ValueError, match="there is moves, matmul"):
        placed.figure("nothing")


# --- routes ---


def shares(kind):
    from torch.distributed.device_mesh import init_device_mesh

    program = lessons.program("dtensor")
    whole, x = routes_ranks.whole_of(program, kind, 64), program.sample(64, 4)
    mesh, found = init_device_mesh("cpu", (2,)), {}
    with torch.no_grad():
        expected = whole(x)
        for route, make in program.ROUTES.items():
            model = make(whole, mesh)
            held = [getattr(p, "to_local", lambda p=p: p)().numel() for p in model.parameters()]
            error = float((model(x) - expected).abs().max())
            found[route] = sum(held), error, routes_ranks.heard(model, x)["collectives"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sums"), [("mlp", 1), ("block", 2)])
def test_all_routes_hold_the_same_shares_and_give_the_same_numbers(ranks, kind, sums):
    for found in ranks.run(shares, kind):
        assert len({held for held, _, _ in found.values()}) == 1
        assert max(error for _, error, _ in found.values()) < routes.TOLERANCE
        assert {called for _, _, called in found.values()} == {sums}


def edges():
    """Whole numbers in Partial and Shard: what each rank holds of a 4 by 4 matrix."""
    from torch.distributed.device_mesh import init_device_mesh

    program = lessons.program("dtensor")
    mesh, x = init_device_mesh("cpu", (2,)), 3 * torch.arange(1.0, 17).view(4, 4)
    return {name: program.place(x, mesh, name).to_local().tolist() for name in program.PLACEMENTS}


def test_ranks_hold_what_the_placement_says(ranks):
    x = [[3.0 * (4 * i + j + 1) for j in range(4)] for i in range(4)]
    zero, one = ranks.run(edges)
    assert zero["R"] == one["R"] == x and one["S(0)"] == x[2:] and zero["S(1)"] == [row[:2] for row in x]
    assert zero["P"] == [[v / 3 for v in row] for row in x]


@pytest.mark.slow
def test_compiled_routes_are_one_graph_with_the_same_collectives(report):
    assert report.notes[0].endswith("holds") and "outputs agree" in report.notes[1]
    graphs = report.tables["graphs"]
    assert set(graphs["collectives"]) == {1} and set(graphs["bytes"]) == {4 * 64 * 4} == set(
        report.frame["bytes"]
    )
    assert (report.tables["counts"].query("way.str.endswith('compiled')")["regions"] == 1).all()


@pytest.mark.slow
def test_dtensor_operations_are_counted_and_worked_out_once(report):
    eager = report.tables["eager"].set_index("route")
    assert list(eager.loc[["a", "b"], "dispatched"]) == [0, 0]
    assert eager.loc["c", "dispatched"] > eager.loc["d", "dispatched"] > 0
    assert 0 < eager.loc["c", "worked_out"] <= eager.loc["c", "dispatched"]


@pytest.mark.slow
def test_figures_of_routes_draw_every_way(report):
    figure = report.figure()
    assert "Medians, shm · cpu, mlp tiny: a eager" in figure.summary and figure.summary.endswith(
        "[shm · cpu]"
    )
    assert "Medians, host only, mlp tiny: a eager" in figure.summary


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: routes.run(r, mlp=["huge"]), "unknown size 'huge'"),
        (lambda r: routes.run(r, block=["wide"]), "unknown size 'wide'"),
        (lambda r: routes.run(r, mlp=[], block=[]), "nothing to run"),
        (lambda r: routes.run(r, rounds=1), "rounds must be"),
        (lambda r: placements.run(r, side=3), "a whole multiple of the 2 ranks"),
    ],
    ids=["mlp", "block", "nothing", "rounds", "side"],
)
def test_what_cannot_be_run_is_refused_before_any_rank_hears_of_it(ranks, call, words):
    calls = ranks.calls
    with pytest.raises(ValueError, match=words):
        call(ranks)
    assert ranks.calls == calls
