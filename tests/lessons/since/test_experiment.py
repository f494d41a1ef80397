"""One compile for all ranks: graphs by switch, what runs on another rank, and how both are drawn."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import labkit
from course.since import experiment as one_compile
from course.since import figures
from labkit import cli, lessons
from labkit.report import Report

PROGRAMS = ["uneven shards", "a sub mesh", "08 order", "slice by mesh.get_local_rank()"]


@pytest.fixture(scope="module")
def four():
    with labkit.Ranks(4, device="cpu", backend="gloo", timeout=240, stall=60, quiet=True) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def report(four) -> Report:
    return one_compile.run(four, ["aot_compile"], programs=PROGRAMS, sizes=(2,))


@pytest.mark.slow
def test_the_switch_removes_what_torch_writes_and_not_what_python_computes(report):
    found = report.frame.set_index(["program", "ranks", "switch"])["graphs"]
    assert [found["uneven shards", size, "off"] for size in (2, 4)] == [2, 4]
    assert [found["uneven shards", size, "on"] for size in (2, 4)] == [1, 1]
    assert [found["a sub mesh", 4, switch] for switch in ("off", "on")] == [2, 1]
    assert [found["slice by mesh.get_local_rank()", 4, switch] for switch in ("off", "on")] == [4, 4]
    assert set(found["08 order"]) == {1}, "the text does not tell the order of inputs"


@pytest.mark.slow
def test_one_process_compiles_for_four_ranks_where_the_program_is_given_its_mesh(report):
    found = report.tables["carried"].groupby(["form", "switch"])["outcome"].agg(list)
    assert found["mesh", "off"] == ["right", "right", "refused", "refused"]
    assert found["mesh", "on"] == 4 * ["right"]
    assert "guard" in report.tables["carried"].query("outcome == 'refused'")["said"].iloc[0]


@pytest.mark.slow
def test_first_calls_are_timed_on_every_rank_and_once_on_the_one(report):
    first = report.tables["first"]
    assert first.groupby("way")["seconds"].size().to_dict() == {
        one_compile.ALONE: 1,
        one_compile.EACH: 2,
        one_compile.AHEAD: 2,
    }
    assert first[["seconds", "cpu_s"]].gt(0).all(axis=None)
    assert list(figures.first_calls(first)["CPU s, summed"].index) == [
        (2, way) for way in (one_compile.ALONE, one_compile.EACH, one_compile.AHEAD)
    ]


@pytest.mark.slow
def test_its_figures_say_in_words_what_they_show(report, tmp_path):
    again = Report.load(report.save(tmp_path))
    assert "Of 3 programs whose graphs differ by rank, the switch makes 2 equal" in again.figure().summary
    assert "aot_compile, mesh, on: rank 0 right" in figures.carried_figure(again).summary


def test_what_cannot_be_run_is_said_before_any_rank_is_asked(ranks, capsys):
    with pytest.raises(ValueError, match="give 4 ranks or 6 or more, got 2"):
        one_compile.run(ranks)
    assert cli.main(["run", "one_compile", "--ranks", "2"]) == 2
    assert "ranks form pairs" in capsys.readouterr().err


@pytest.mark.slow
def test_bad_arguments(four):
    for wrong, said in (
        ({"store": ["tape"]}, "unknown store 'tape'"),
        ({"programs": ["none"]}, "unknown program 'none'"),
        ({"sizes": [3]}, "sizes are even numbers of ranks"),
    ):
        with pytest.raises(ValueError, match=said):
            one_compile.run(four, **wrong)


def test_reports_without_rows_are_drawn():
    graphs = pd.DataFrame(columns=["program", "ranks", "switch", "graphs"])
    carried = pd.DataFrame(columns=["store", "form", "switch", "rank", "outcome"])
    empty = Report("one_compile", "", "gloo · cpu", {"graphs": graphs, "carried": carried})
    assert "No program was compiled" in figures.figure(empty).summary
    assert "Nothing was stored" in figures.carried_figure(empty).summary


def test_the_text_of_a_graph_has_no_file_names():
    program = lessons.program("since")
    graph = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    assert program.plain_text(graph).splitlines()[-1] == "return add" and "#" not in program.plain_text(graph)
