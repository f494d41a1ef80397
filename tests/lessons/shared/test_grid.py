"""A mesh at work on four live ranks: members, results and bytes of every collective along every axis."""

from __future__ import annotations

import pytest

import labkit
from labkit.lessons.shared import grid as mesh


@pytest.fixture(scope="module")
def report():
    with labkit.Ranks(4, device="cpu", backend="gloo", timeout=60, quiet=True) as four:
        yield mesh.run(four, (2, 2), ("dp", "tp"), kib=16)


def after(report, operation: str, axis: str) -> list[list[int]]:
    results = report.tables["results"]
    mine = results[(results["operation"] == operation) & (results["axis"] == axis)]
    return list(mine.sort_values("rank")["after"])


def expected(operation: str, groups: list[list[int]]) -> list[list[int]]:
    """The same in plain Python: quarters of rank r's tensor hold 10 r, 10 r + 1, 10 r + 2, 10 r + 3."""
    found = {}
    for group in groups:
        have = [[10 * rank + i for i in range(4)] for rank in group]
        total, size = [sum(column) for column in zip(*have, strict=True)], 4 // len(group)
        for at, rank in enumerate(group):
            part = slice(at * size, (at + 1) * size)
            found[rank] = {
                "all_reduce": total,
                "all_gather": sum(have, []),
                "reduce_scatter": total[part],
                "broadcast": have[0],
                "all_to_all": sum((row[part] for row in have), []),
            }[operation]
    return [found[rank] for rank in sorted(found)]


@pytest.mark.slow
@pytest.mark.parametrize("operation", mesh.OPERATIONS)
@pytest.mark.parametrize(
    ("axis", "groups"),
    [("dp", [[0, 2], [1, 3]]), ("tp", [[0, 1], [2, 3]]), ("world", [[0, 1, 2, 3]])],
    ids=["dp", "tp", "world"],
)
def test_every_collective_gives_what_it_says_within_its_groups(report, operation, axis, groups):
    assert after(report, operation, axis) == expected(operation, groups)
    sent = report.tables["bytes"]
    mine = sent[(sent["operation"] == operation) & (sent["axis"] == axis)]
    data = mine[mine["bytes"] > 2000]  # what else may pass are notices, such as those of a late barrier
    assert len(data)
    assert all(any({row.source, row.target} <= set(group) for group in groups) for row in data.itertuples())


@pytest.mark.slow
def test_an_all_reduce_sends_what_a_ring_needs_and_little_more(report):
    sent = report.tables["bytes"].groupby(["operation", "axis", "source"])["bytes"].sum()
    for axis, size in (("dp", 2), ("tp", 2), ("world", 4)):
        least = mesh.ring_bytes("all_reduce", size, 16 * 1024)
        for rank in range(4):
            assert least <= sent["all_reduce", axis, rank] < 1.25 * least


@pytest.mark.slow
def test_the_grid_says_who_stands_where(report):
    grid = report.tables["grid"].set_index(["rank", "axis"])
    assert [grid.loc[(2, axis), "place"] for axis in ("dp", "tp", "world")] == [1, 0, 2]
    assert grid.loc[(2, "dp"), "group"] == [0, 2] and grid.loc[(2, "tp"), "group"] == [2, 3]
    assert report.figure("all_reduce", "tp").summary.startswith("all_reduce along tp: 2 groups of 2")
    assert not report.notes


@pytest.mark.parametrize(
    ("shape", "names", "kib", "words"),
    [
        ((2, 2), ("dp", "tp"), 16, "a mesh of 2 x 2 needs 4 ranks, and there are 2"),
        ((2,), ("dp", "tp"), 16, "a size above 0 and a name for each axis"),
        ((2, 1), ("dp", "dp"), 16, "axes need names of their own"),
        ((2, 1), ("dp", "world"), 16, "axes need names of their own"),
        ((2, 1), ("dp", "tp"), 0, "0 KiB cannot be cut"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused_before_any_rank_hears_of_it(ranks, shape, names, kib, words):
    calls = ranks.calls
    with pytest.raises(ValueError, match=words):
        mesh.run(ranks, shape, names, kib=kib)
    assert ranks.calls == calls
