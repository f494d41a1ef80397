"""The cliff: exact counts per forward at two blocks, what the report says, and what it refuses."""

from __future__ import annotations

import pandas as pd
import pytest

from course.cliff import experiment as cliff
from course.shared.variants import choose, own, with_own_code
from labkit.report import Report

BLOCKS = 2


@pytest.fixture(scope="module")
def report(shm_ranks) -> Report:
    return cliff.run(shm_ranks, blocks=BLOCKS, rounds=12, regional=True)


def counts(report: Report, variant: str) -> pd.Series:
    mine = report.tables["counts"].query("variant == @variant").drop(columns=["variant", "rank"])
    assert len(mine) == 2 and len(mine.drop_duplicates()) == 1, "both ranks must count the same"
    return mine.iloc[0]


@pytest.mark.slow
def test_disabled_collectives_fragment_every_block(report):
    found = counts(report, "B")
    assert found["collectives"] == found["at_collective"] == 4 * BLOCKS
    assert found["regions"] == 11 * BLOCKS
    assert found["breaks"] == 8 * BLOCKS
    assert found["skips"] == 1  # Model.forward, whose loop a break ends
    # the static counter does not grow with the blocks
    assert 0 < found["static_breaks"] < found["breaks"]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["C", "E"])
def test_one_graph_and_no_break_without_disable(report, variant):
    found = counts(report, variant)
    assert (found["regions"], found["breaks"], found["graphs"], found["skips"]) == (1, 0, 1, 0)
    assert found["collectives"] == 4 * BLOCKS


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["A", "D"])
def test_eager_enters_no_region(report, variant):
    found = counts(report, variant)
    assert (found["regions"], found["breaks"], found["graphs"]) == (0, 0, 0)
    assert found["collectives"] == 4 * BLOCKS


@pytest.mark.slow
def test_every_variant_agrees_with_the_unsharded_model(report):
    cold = report.tables["cold"].query("evidence == @report.label")
    cold = cold[cold["variant"].isin(list("ABCDE"))]
    assert len(cold) == 10 and (cold["max_error"] < cliff.TOLERANCE).all()
    assert any("agree with the unsharded model" in note for note in report.notes)


@pytest.mark.slow
def test_evidence_is_kept_apart(report):
    samples = report.tables["samples"]
    assert set(samples["evidence"]) == {"shm · cpu", "host only"}
    assert set(samples.groupby(["evidence", "variant", "rank"]).size()) == {12}
    assert set(report.tables["verdicts"]["evidence"]) == {"shm · cpu", "host only"}
    # no correctness is claimed where nothing was communicated
    assert report.tables["cold"].query("evidence == 'host only'")["max_error"].isna().all()


@pytest.mark.slow
def test_segments_add_up_to_the_breakdown_and_to_the_forward(report):
    segments = report.tables["segments"]
    lengths = (
        (segments["end_us"] - segments["start_us"]).groupby([segments["variant"], segments["rank"]]).sum()
    )
    total = report.tables["breakdown"].groupby(["variant", "rank"])["us"].sum()
    assert lengths.to_numpy() == pytest.approx(total.to_numpy())
    whole = segments.groupby(["variant", "rank"]).agg(start=("start_us", "min"), end=("end_us", "max"))
    assert lengths.to_numpy() == pytest.approx((whole["end"] - whole["start"]).to_numpy())


@pytest.mark.slow
def test_it_survives_saving(report, tmp_path):
    loaded = Report.load(report.save(tmp_path))
    assert list(loaded.tables) == list(report.tables)
    pd.testing.assert_frame_equal(loaded.tables["counts"], report.tables["counts"], check_dtype=False)
    assert [v.outcome for v in loaded.verdicts] == [v.outcome for v in report.verdicts]


@pytest.mark.slow
def test_a_readers_own_all_reduce_takes_a_variants_place(shm_ranks):
    import torch

    @torch.compiler.disable
    def hidden(x):
        import torch.distributed as dist

        dist.all_reduce(x)
        return x

    found = cliff.run(shm_ranks, blocks=1, variants="E", rounds=2, reduces={"E": hidden}, host_only=False)
    assert (found.tables["counts"]["breaks"] > 0).all()
    assert any("DOES NOT HOLD" in note for note in found.notes)


def test_fewer_variants_elsewhere(shm_ranks):
    found = cliff.run(shm_ranks, blocks=1, variants="AD", elsewhere="D", rounds=3)
    there = found.tables["samples"].groupby("evidence", sort=False)["variant"].unique()
    assert {evidence: list(letters) for evidence, letters in there.items()} == {
        "shm · cpu": ["A", "D"],
        "host only": ["D"],
    }
    assert list(found.tables["verdicts"]["evidence"]) == ["shm · cpu"]  # a pair needs both of its variants
    summary = found.tables["summary"].set_index("variant")
    assert summary.loc["A eager, in place", "host only: p10-p90"] == "not measured"
    assert summary["shm · cpu: ms"].notna().all() and summary["host only: ms"].notna().tolist() == [
        False,
        True,
    ]
    for which in ("timings", "ratios", "source"):
        assert found.figure(which).png()


def test_bad_requests_are_refused_before_anything_runs(shm_ranks):
    calls = shm_ranks.calls
    for kwargs, rule in (
        ({"blocks": 0}, "blocks must be a whole number"),
        ({"variants": "Z"}, "unknown variant 'Z'"),
        ({"variants": "ABA"}, "variant 'A' is given twice"),
        ({"variants": "ABA"}, "variant 'A' is given twice"),
        ({"variants": ""}, "no variant was chosen"),
        ({"rounds": 0}, "rounds must be"),
        ({"heads": 3, "dim": 63}, "heads=3 cannot be split evenly over world_size=2"),
        ({"variants": "A", "reduces": {"B": int}}, "names variant 'B'"),
        ({"variants": "AC", "elsewhere": "CB"}, "elsewhere names variant 'B', which is not among 'AC'"),
        ({"elsewhere": ""}, "no variant was chosen"),
    ):
        with pytest.raises(ValueError, match=rule):
            cliff.run(shm_ranks, **kwargs)
    assert shm_ranks.calls == calls


def test_copies_of_code_are_apart_and_do_the_same():
    import torch

    class Twice(torch.nn.Module):
        def forward(self, x):
            return x * 2

    first, second = with_own_code(Twice()), with_own_code(Twice())
    assert first.forward.__func__.__code__ is not second.forward.__func__.__code__
    assert first(torch.ones(1)).item() == second(torch.ones(1)).item() == 2
    assert isinstance(first, Twice) and type(first).__name__ == "Twice"
    assert own(len) is len
    assert [v.letter for v in choose("CA")] == ["C", "A"]
