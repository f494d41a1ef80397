"""Lesson 09's cells: what each dimension does on one rank and in step, and how an odd shape ends."""

from __future__ import annotations

import lesson_cells
import pandas as pd
import pytest

import labkit
from course.guards import figures as drawn
from labkit import Ranks, lessons

DEFAULT = {
    "sequence length": "1.D.........",
    "batch": "1.D.R.......",
    "dtype": "1.R.RR...",
    "int argument": "1.D.....",
    "float argument": "1.D...",
    "bool argument": "1.R..",
    "int attribute": "1.RRRRRRRXX.",
    "grad mode": "1.RR..",
    "thread count": "1.RRR..",
}
LETTERS = {
    "first compile": "1",
    "reused": ".",
    "recompiled": "R",
    "went dynamic": "D",
    "gave up": "X",
}

code = lessons.program("guards")


def states(rows: list[dict]) -> str:
    return "".join(LETTERS[row["state"]] for row in rows)


@pytest.fixture(scope="module")
def alone():
    with Ranks(1, device="cpu", backend="gloo", quiet=True) as one:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFAULT)
def test_each_dimension_does_what_it_is_known_to_do_on_one_rank_and_in_step_on_two(ranks, alone, name):
    for rows in [
        *alone.run(code.walk, code.Layer, name).values(),
        *ranks.run(code.walk, code.Layer, name).values(),
    ]:
        assert states(rows) == DEFAULT[name] and all(row["right"] for row in rows)


@pytest.mark.slow
def test_a_policy_is_told_beforehand(ranks):
    found = {
        name: states(ranks.run(code.walk, code.Layer, "batch", name, (4, 6, 1, 1))[1])
        for name in code.POLICIES
    }
    assert found == {
        "default": "1DR.", "mark_dynamic": "1.R.", "mark_unbacked": "1...", "dynamic=True": found["dynamic=True"],
        "dynamic=False": "1RR.",
    }  # fmt: skip
    assert found["dynamic=True"] in ("1.D.", "1.R.")


def test_every_dimension_repeats_its_first_value_before_it_varies():
    for values, _ in code.DIMENSIONS.values():
        assert values[0] == values[1] and len(set(values)) > 1


def test_the_map_says_where_ranks_differ():
    rows = [
        {"ranks": 2, "rank": r, "policy": "default", "dimension": name, "step": i, "value": str(i), "state": state}
        for r in (0, 1)
        for name in ("batch", "dtype")
        for i, state in enumerate(["first compile", "gave up" if name == "dtype" and r == 0 else "reused"])
    ]  # fmt: skip
    said = drawn.sweep_matrix(pd.DataFrame(rows), "gloo · cpu").summary
    assert "AND THE RANKS DIFFER" in said and "dtype ends in giving up" in said


@pytest.mark.slow
def test_what_a_number_that_varies_costs(ranks):
    """Lesson 09: a loop count compiles for each value, as an argument too; the switch mends only what multiplies."""
    cells = ("guards-02", "guards-17-counted")
    counted = lesson_cells.run("09_guards_and_shapes", *cells, ranks=ranks, pd=pd)["counted"]
    assert counted == {
        "for _ in range(self.k)": (8, 4),
        "for _ in range(self.k), with the switch": (8, 4),
        "for _ in range(k), k an argument": (8, 4),
        "x * self.k, an int": (8, 4),
        "x * self.k, an int, with the switch": (2, 0),
        "x * self.k, a float": (2, 0),
        "x * k, k an argument": (2, 0),
        "x * k, k a float argument": (2, 0),
        "x * self.k, a tensor": (1, 0),
        "torch.where in a fixed loop, k a tensor": (1, 0),
    }


@pytest.mark.slow
def test_each_change_fails_at_the_guard_that_the_list_has_for_it(ranks):
    """Lesson 09: what is no part of the list compiles nothing, and the failed guard is named."""
    names = {"ranks": ranks, "labkit": labkit, "places": labkit.places, "reveal": lambda *found: ""}
    names["predict"] = lambda question, unit: None
    cells = ("guards-02", "guards-04", "guards-06", "guards-10", "guards-11")
    broken = lesson_cells.run("09_guards_and_shapes", *cells, **names)["broken"]
    assert [name for name, guard in broken.items() if not guard] == [
        "other numbers in x", "a slice of the same shape", "times=2, by name", "UNUSED = 5.0",
    ]  # fmt: skip
    assert "dtype mismatch. expected Float, actual Double" in broken["float64"]
    assert broken["times=2.0"] == "times == 2" and broken["kind='relu'"] == "kind == 'gelu'"
    assert "num_threads" in broken["one thread more"] and "grad_mode" in broken["under no_grad"]


@pytest.mark.slow
def test_what_a_length_costs_under_each_setting(ranks):
    """Lesson 09: a branch takes a version for each side, a loop one for each length; fullgraph says where it ends."""
    cells = ("guards-02", "guards-18", "guards-29", "guards-30")
    space = lesson_cells.run("09_guards_and_shapes", *cells, ranks=ranks, pd=pd)
    told, strict = space["told"], space["strict"]
    assert [told[p]["summed"] for p in told] == [
        "3 compiles", "2 compiles", "1 compiles", "2 compiles", "8 compiles, 4 calls in eager",
    ]  # fmt: skip
    assert told["default"]["branches"] == "4 compiles" and "pieces" in told["mark_unbacked"]["branches"]
    assert told["default"]["loops"] == "8 compiles, 4 calls in eager"
    assert told["mark_dynamic"]["loops"] == strict["mark_dynamic"]["loops"] == "ConstraintViolationError"
    assert strict["mark_unbacked"]["branches"] == "UserError"
    assert strict["dynamic=False"]["branches"] == "8 compiles, then FailOnRecompileLimitHit"


@pytest.mark.slow
def test_a_stack_is_traced_block_by_block_or_one_block_of_it(shm_ranks):
    for rows in shm_ranks.run(code.one_depth, 6, 0).values():
        traced = {row["form"]: row["traced"] for row in rows}
        assert traced["whole"] == 6 and traced["block by block"] == 1 and traced["nested region"] < 6
        assert max(row["error"] for row in rows) < 1e-4


@pytest.mark.slow
def test_a_norm_drifts_where_it_is_decomposed_and_a_product_does_not_before_inductor(ranks):
    start = "    h = F.layer_norm(x, (x.shape[-1],))\n"
    ends = {"product": "    return x @ w\n", "norm": "    return F.layer_norm(x, (x.shape[-1],))\n"}
    first = {}
    for name, end in ends.items():
        space = lesson_cells.copied("09_guards_and_shapes", (start, end + start))
        by_stage = {
            stage: ranks.run(space["drifted"], "float32", stage, 4, space["attention_like"], ranks=0)[0]
            for stage in code.STAGES[:3]
        }
        differ = [stage for stage, rows in by_stage.items() if any(row["differ"] for row in rows)]
        first[name] = differ[0] if differ else "none"
    assert first == {"product": "none", "norm": "aot_eager_decomp_partition"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "ended", "compiles"),
    [
        ({"timeout_s": 2.5}, "error", None),
        ({"timeout_s": 2.5, "guard_collectives": True}, "right", (2, 2)),
        ({"timeout_s": 2.5, "lengths": (6, 6, 6)}, "right", (1, 1)),
        ({}, "right", (1, 2)),
    ],
    ids=["short timeout", "guard collectives", "from the first call on", "default timeout"],
)
def test_an_odd_shape_ends_in_an_error_only_where_the_compile_outlasts_the_timeout(asked, ended, compiles):
    with Ranks(2, device="cpu", backend="gloo", quiet=True) as two:  # a group that timed out is lost
        found = list(two.run(code.odd_call, 6.0, **asked).values())
    assert {one["ended"].partition(":")[0] for one in found} == {ended}
    assert compiles is None or tuple(len(one["dynamic"]) for one in found) == compiles
