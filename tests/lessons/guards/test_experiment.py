"""The guard sweep, depth, drift and the odd shape: what they say of cases that are known, and what they refuse."""

from __future__ import annotations

import lesson_cells
import pandas as pd
import pytest

import labkit
from course.guards import depth, drift, odd_shape
from course.guards import experiment as guards
from course.guards import figures as drawn
from labkit import Ranks, lessons
from labkit.report import PerRank, Report

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


def states(report: Report, **where: object) -> str:
    rows = report.tables["steps"]
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return "".join(LETTERS[state] for state in rows.sort_values("step")["state"])


@pytest.fixture(scope="module")
def swept(ranks, tmp_path_factory) -> Report:
    folder = tmp_path_factory.mktemp("sweep")
    return guards.run(ranks, list(DEFAULT), ["default"], rounds=0, inductor=0, folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFAULT)
def test_each_dimension_does_what_it_is_known_to_do_on_one_rank_and_in_step_on_two(swept, name):
    for count, rank in ((1, 0), (2, 0), (2, 1)):
        assert states(swept, dimension=name, ranks=count, rank=rank) == DEFAULT[name]
    assert list(swept.tables["steps"]["right"].unique()) == [True]


@pytest.mark.slow
def test_the_table_says_what_to_freeze(swept):
    verdicts = swept.frame.set_index("dimension")["verdict"]
    assert verdicts["int attribute"] == verdicts["dtype"] == "freeze"
    assert verdicts["sequence length"] == "warm up twice" and verdicts["batch"] == "freeze or warm up"
    assert "ranks in step did the same at every step; one rank alone did the same" in swept.notes[0]
    assert "gave up: int attribute" in swept.notes


@pytest.mark.slow
def test_a_policy_is_told_beforehand(ranks, tmp_path):
    report = guards.run(ranks, ["batch"], batches="4,6,1,1", rounds=0, inductor=0, folder=tmp_path)
    found = {
        name: states(report, policy=name, ranks=2, rank=1) for name in lessons.program("guards").POLICIES
    }
    assert found == {
        "default": "1DR.", "mark_dynamic": "1.R.", "mark_unbacked": "1...", "dynamic=True": found["dynamic=True"],
        "dynamic=False": "1RR.",
    }  # fmt: skip
    assert found["dynamic=True"] in ("1.D.", "1.R.")
    assert "rank 0 of 2" in report.figure().summary


@pytest.mark.slow
def test_what_a_step_costs_has_a_verdict_and_an_interrupt_loses_no_point(ranks, tmp_path, monkeypatch):
    code = lessons.program("guards")
    real = Ranks.run

    def interrupted(self, fn, *arguments, **more):
        if fn is code.prices:
            raise KeyboardInterrupt
        return real(self, fn, *arguments, **more)

    ask = {"policy": ["default"], "batches": "4,6", "rounds": 2, "inductor": 0, "folder": tmp_path}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ranks, "run", interrupted)
        guards.run(ranks, ["batch"], **ask)
    report = guards.run(ranks, ["batch"], **ask)
    assert report.provenance["resumed"] == 3 and "3 points are from before an interrupt" in report.notes[-1]
    cost = report.tables["cost"]
    assert set(cost["what"]) >= {"first compile", "one more", "reused call", "eager", "1 version", "gave up"}
    assert len(report.verdicts) == 3 and all(v.n == 2 for v in report.verdicts)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dimension": ["weather"]}, "unknown dimension 'weather': there is sequence length, batch"),
        ({"policy": ["static"]}, "unknown policy 'static': there is default, mark_dynamic"),
        ({"lengths": "64:8"}, "lengths: the range 64:8 is empty"),
        ({"batches": "4,4"}, "batches: a sweep varies something"),
        (
            {"dimension": ["batch"], "lengths": "8,16"},
            "lengths were given, and 'sequence length' is not among",
        ),
        ({"dimension": ["dtype"], "policy": ["mark_dynamic"]}, "apply to sequence length, batch only"),
        ({"rounds": 1}, "rounds must be a whole number of at least 2"),
        ({"inductor": -1}, "inductor is how often it compiles"),
    ],
)
def test_a_bad_sweep_is_refused_before_any_rank_is_asked(ranks, tmp_path, arguments, said):
    calls = ranks.calls
    with pytest.raises(ValueError) as caught:
        guards.run(ranks, folder=tmp_path, **arguments)
    assert said in str(caught.value) and ranks.calls == calls and not list(tmp_path.iterdir())


def test_depth_drift_and_the_odd_shape_refuse_as_well(ranks, tmp_path):
    calls = ranks.calls
    for ask, said in (
        (lambda: depth.run(ranks, "8:1", folder=tmp_path), "depths: the range 8:1 is empty"),
        (lambda: depth.run(ranks, [1, 500], folder=tmp_path), "a value is from 1 to 128, got 500"),
        (lambda: drift.run(ranks, ["int8"], folder=tmp_path), "unknown dtype 'int8'"),
        (lambda: drift.run(ranks, seeds=1, folder=tmp_path), "a number of inputs from 2 to 1000, got 1"),
        (lambda: odd_shape.run(ranks, ("prayer",)), "unknown help 'prayer'"),
        (lambda: odd_shape.run(ranks, timeout_s=0), "timeout_s must be a number of seconds above 0, got 0"),
    ):
        with pytest.raises(ValueError) as caught:
            ask()
        assert said in str(caught.value)
    assert ranks.calls == calls


@pytest.mark.slow
def test_depth_traces_each_block_or_one_of_them(shm_ranks, tmp_path):
    report = depth.run(shm_ranks, [1, 6], rounds=2, folder=tmp_path)
    graphs = report.tables["graphs"].set_index(["depth", "form", "rank"])["traced"]
    for rank in (0, 1):
        assert graphs[6, "whole", rank] == 6 and graphs[6, "block by block", rank] == 1
        assert graphs[6, "nested region", rank] < 6
    assert "outputs agree" in report.notes[0]
    assert "block by block:" in report.figure().summary


def test_depth_goes_on_in_the_round_where_it_was_stopped(shm_ranks, tmp_path, monkeypatch):
    run, calls = shm_ranks.run, []

    def stopped(*arguments, **rest):
        calls.append(arguments)
        if len(calls) == 5:  # after one for warmup, of two rounds of two depths: in the last point
            raise KeyboardInterrupt
        return run(*arguments, **rest)

    ask = {"depths": [1, 2], "rounds": 2, "forms": [depth.WHOLE], "folder": tmp_path}
    monkeypatch.setattr(shm_ranks, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        depth.run(shm_ranks, **ask)
    report = depth.run(shm_ranks, **ask)
    assert report.provenance["resumed"] == 3 and len(calls) == 7
    assert report.tables["summary"]["n"].tolist() == [2, 2] and report.tables["slopes"].empty
    with pytest.raises(
        ValueError, match="unknown form 'half': there is whole, block by block, nested region"
    ):
        depth.run(shm_ranks, forms=["half"])


def test_the_fit_finds_the_growth_that_is_there():
    rows = [(d, "whole", r, 0.1 * d**2 * (1 + 0.01 * r)) for d in (1, 2, 4, 8) for r in range(8)]
    found = depth.fit(pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"])).iloc[0]
    assert found["exponent"] == pytest.approx(2) and found["low"] <= 2 <= found["high"] + 1e-9


def test_one_busy_round_moves_neither_the_line_nor_the_verdict():
    cost = {depth.WHOLE: 0.04, depth.NESTED: 0.04, depth.BLOCKS: 0.0}
    rows = [
        (d, form, r, (0.1 + per * d) * (1 + 0.01 * ((d + r) % 3)) * (5 if r == 3 and d == 4 else 1))
        for d in (1, 2, 4) for r in range(9) for form, per in cost.items()
    ]  # fmt: skip
    first = pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"])
    line = depth.fit(first).set_index("form").loc[depth.WHOLE]
    assert line["per_block_s"] == pytest.approx(0.04, rel=0.1) and line["first_s"] == pytest.approx(
        0.1, rel=0.1
    )
    told = depth.compare_slopes(first).set_index(["a", "b"])["outcome"]
    assert told.to_dict() == {
        (depth.BLOCKS, depth.WHOLE): "less",
        (depth.NESTED, depth.WHOLE): "cannot tell",
        (depth.BLOCKS, depth.NESTED): "less",
    }
    few = depth.compare_slopes(first[first["round"] < 4])
    assert set(few["outcome"]) == {"cannot tell"}, "below eight rounds no interval has ends"


def test_what_is_said_of_a_drift_follows_the_numbers():
    rows = [
        {"dtype": "bfloat16", "stage": stage, "rank": 0, "seed": i, "differ": 0.5 if i < many else 0.0,
         "largest": 0.1, "error": 0.1, "eager_error": 0.1}
        for stage, many in (("eager", 0), ("aot_eager", 3), ("inductor", 16))
        for i in range(16)
    ]  # fmt: skip
    report = drift._report(rows, {}, [], "gloo · cpu")
    assert report.notes[0].endswith("bfloat16: aot_eager in 3 of 16 inputs, inductor in most")
    assert "in most inputs: bfloat16 from inductor on" in report.figure().summary
    assert "aot_eager: 0.0% differ (in 3 of 16 inputs some)" in report.figure().summary
    nowhere = drift._report([{**row, "differ": 0.0} for row in rows], {}, [], "gloo · cpu")
    assert nowhere.notes[0].endswith("bfloat16: none") and "bfloat16 nowhere" in nowhere.figure().summary


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
    for name in ("int attribute", "float attribute"):
        assert "pass it as" not in guards.INSTEAD[name]


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
def test_a_norm_drifts_where_it_is_decomposed_and_a_product_does_not_before_inductor(ranks, tmp_path):
    start = "    h = F.layer_norm(x, (x.shape[-1],))\n"
    ends = {"product": "    return x @ w\n", "norm": "    return F.layer_norm(x, (x.shape[-1],))\n"}
    programs = {
        name: lesson_cells.copied("09_guards_and_shapes", (start, end + start)) for name, end in ends.items()
    }
    ask = {
        "dtype": ["float32"],
        "seeds": 4,
        "stages": lessons.program("guards").STAGES[:3],
        "folder": tmp_path,
    }
    found = {name: drift.run(ranks, program=code, **ask) for name, code in programs.items()}
    assert found["product"].tables["first"]["first stage that differs"].item() == "none"
    assert found["norm"].tables["first"]["first stage that differs"].item() == "aot_eager_decomp_partition"
    assert (found["product"].tables["stages"]["ratio"] == 1).all() and set(
        found["norm"].tables["stages"]["n"]
    ) == {4}
    assert "float32 from aot_eager_decomp_partition on" in found["norm"].figure().summary
    with pytest.raises(ValueError, match="unknown stage 'triton': there is eager; aot_eager"):
        drift.run(ranks, stages=["triton"])


def test_the_first_stage_that_drifts():
    assert drift.first_drift({"eager": 0.0, "aot_eager": 0.1, "inductor": 0.0}) == "aot_eager"
    assert (
        drift.first_drift({"eager": 0.0}) == "" and drift.first_drift({"inductor": 0.1}, tolerance=0.2) == ""
    )


@pytest.mark.slow
def test_the_map_says_where_ranks_differ_and_freezes_what_gives_up(tmp_path):
    rows = [
        {"ranks": 2, "rank": r, "policy": "default", "dimension": name, "step": i, "value": str(i), "state": state,
         "right": True, "graphs": 1}
        for r in (0, 1)
        for name in ("batch", "dtype")
        for i, state in enumerate(["first compile", "gave up" if name == "dtype" and r == 0 else "reused"])
    ]  # fmt: skip
    steps = pd.DataFrame(rows)
    report = Report("guards", "t", "gloo · cpu", {"steps": steps})
    assert "AND THE RANKS DIFFER" in drawn.figure(report).summary
    assert guards.freeze(steps).set_index("dimension")["verdict"].to_dict() == {
        "dtype": "freeze",
        "batch": "free",
    }
    assert "DID NOT DO THE SAME" in guards._notes(steps)[0]
    wrong = guards._notes(steps.assign(right=[False] + [True] * 7))
    assert "1 of 8 calls DIFFER" in wrong[1]


@pytest.mark.slow
def test_a_compile_longer_than_the_timeout_kills_the_job_and_guard_collectives_mend_it():
    """The sleep and the timeout are named in the rows and the figure, and the control at torch's default ends right."""
    with Ranks(2, device="cpu", backend="gloo", quiet=True) as two:
        report = odd_shape.run(two, ("none", "guard collectives"), sleep_s=2.5, timeout_s=0.8)
    said = report.figure().summary
    assert "from the second call error (right at the default timeout); mended by guard collectives" in said
    assert "from the second call, guard collectives: right, graphs 2 / 2, dynamic" in said
    found = report.frame.set_index(["differs", "help"])
    ended = found["outcome"]
    assert ended[odd_shape.SAME, "none"] == ended[odd_shape.FIRST, "none"] == "right"
    assert (
        ended[odd_shape.LATER, "none"] == "error" and ended[odd_shape.LATER, "guard collectives"] == "right"
    )
    assert found.loc[(odd_shape.LATER, "guard collectives"), "graphs by rank"] == "2 / 2"
    assert ended[odd_shape.CONTROL, "none"] == "right"
    assert found.loc[(odd_shape.CONTROL, "none"), "graphs by rank"] == "1 / 2"
    assert set(report.frame["sleep_s"]) == {2.5}
    rests = report.frame.groupby("differs")["timeout_s"].agg(lambda column: column.dropna().tolist())
    assert rests[odd_shape.LATER] == [0.8, 0.8] and rests[odd_shape.CONTROL] == []
    assert "a compile after the first sleeps 2.5 s; collectives time out after 0.8 s" in said


def test_every_dimension_repeats_its_first_value_before_it_varies():
    dimensions = lessons.program("guards").DIMENSIONS
    assert set(guards.INSTEAD) == set(dimensions), "what to do instead is said for each"
    for values, _ in dimensions.values():
        assert values[0] == values[1] and len(set(values)) > 1


def test_growth_is_told_from_four_depths_on_and_only_where_all_rounds_agree():
    def first(seconds, depths=(1, 2, 4, 8)):
        rows = [(d, "whole", r, seconds(d, r)) for d in depths for r in range(8)]
        return pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"])

    worse = depth.bends(first(lambda d, r: 0.2 + 0.1 * d**2 * (1 + 0.01 * r)))
    line = depth.bends(first(lambda d, r: 5.0 + 0.1 * d * (1 + 0.3 * ((d + r) % 3))))
    assert worse["outcome"].item() == "worse than a line" and line["outcome"].item() == "cannot tell"
    assert depth.bends(first(lambda d, r: 0.1 * d**2, depths=(1, 2, 4))).empty


@pytest.mark.parametrize(("rounds", "outcome"), [(8, "cannot tell"), (10, "worse than a line")])
def test_three_forms_need_more_rounds_than_one_for_a_word_on_their_growth(rounds, outcome):
    rows = [(d, f, r, 0.1 * d**2) for d in (1, 2, 4, 8) for f in depth.FORMS for r in range(rounds)]
    found = depth.bends(pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"]))
    assert (found["low"] > 0).all() and set(found["outcome"]) == {outcome}


def test_the_lanes_of_the_odd_shape_say_how_each_timeout_ended():
    from course.guards.odd_shape_figures import Attempts

    def one(ended, end):
        spans = [
            {"kind": "compile", "start": 0.0, "end": 0.1},
            {"kind": "all-reduce", "start": 0.1, "end": end},
        ]
        return {"ended": ended, "spans": spans, "dynamic": [False]}

    runs = {
        0.5: PerRank({0: one("error: Timed out", 0.6), 1: one("error: closed", 1.6)}),
        None: PerRank({0: one("right", 1.6), 1: one("right", 1.6)}),
    }
    shown = Attempts(runs, 1.5, "gloo · cpu")
    assert shown.text == "0.5 s error, torch's default right"
    said = shown.figure.summary
    assert (
        "sleeps 1.5 s" in said and "timeout: 0.5 s, rank 1: compile, all-reduce; error after 1.60 s" in said
    )
    assert shown.widget is None or shown.widget.children
    shown.close()
