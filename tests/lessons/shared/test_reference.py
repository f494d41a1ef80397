"""The tables of figures from the source documents: as the documents have them, each row with its place."""

from __future__ import annotations

import pytest

from course.shared import reference


@pytest.mark.parametrize("name", reference.names())
def test_every_row_says_where_it_comes_from(name):
    table = reference.load(name)
    assert len(table) >= 3
    # what was read in released wheels names each by its digest
    origin = ["wheel_sha256"] if "wheel_sha256" in table else ["document", "section"]
    assert not table[origin].isna().any(axis=None)
    readme = (reference.FOLDER / "README.md").read_text()
    assert f"## {name}.csv" in readme


def test_the_savings_of_offloading_are_relative_to_the_peak_without():
    table = reference.load("activation_offload")
    without = table["peak_alloc_mb"] + table["memory_savings_mb"]
    assert (100 * table["memory_savings_mb"] / without).round(1).tolist() == table[
        "memory_savings_percent"
    ].tolist()


def test_the_issue_is_named_after_its_all_reduce():
    table = reference.load("issue_138773").set_index("collective")
    assert (
        round(100 * (table.loc["AllReduce", "functional_us"] / table.loc["AllReduce", "eager_us"] - 1)) == 67
    )


def test_an_unknown_table_is_named_with_those_there_are():
    with pytest.raises(
        ValueError, match="no reference table 'runs': there are activation_offload, .*scope_runs"
    ):
        reference.load("runs")


def test_without_the_repository_one_sentence_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(reference, "FOLDER", tmp_path / "data" / "reference")
    with pytest.raises(ValueError, match="run labkit from a checkout"):
        reference.load("scope_runs")
