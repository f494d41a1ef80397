"""One compile for all ranks: graphs by switch, what runs on another rank, and how both are drawn."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import labkit
from course.since import figures
from labkit import lessons
from labkit.report import Report

program = lessons.program("since")


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_the_switch_removes_what_torch_writes_and_not_what_python_computes(size):
    with labkit.Ranks(size, device="cpu", backend="fake", quiet=True) as fake:

        def graphs(name):
            return tuple(len(set(fake.run(program.graphs_of, name, on).values())) for on in (False, True))

        assert graphs("uneven shards") == (size, 1)
        assert graphs("a sub mesh") == (size // 2, 1)
        assert graphs("slice by mesh.get_local_rank()") == (size, size)
        assert graphs("08 order") == (1, 1), "the text does not tell the order of inputs"


@pytest.mark.slow
def test_one_process_compiles_for_four_ranks_where_the_program_is_given_its_mesh(tmp_path):
    found = {}
    with (  # new processes on both sides: torch counts groups up, and names them so
        labkit.Ranks(4, device="cpu", backend="gloo", timeout=240, stall=60, quiet=True) as four,
        labkit.Ranks(4, device="cpu", backend="fake", quiet=True) as one,
    ):
        for on in (False, True):
            (tmp_path / str(on)).mkdir()
            way = ("aot_compile", "mesh", on, tmp_path / str(on))
            assert one.run(program.compile_ahead, *way, ranks=0)[0] is None
            found[on] = list(four.run(program.use, *way).values())
    assert [outcome for outcome, _ in found[False]] == ["right", "right", "refused", "refused"]
    assert "guard" in found[False][2][1]
    assert found[True] == 4 * [("right", "")]


def test_figures_say_in_words_what_they_show():
    rows = [("a", 2, "off", 2), ("a", 2, "on", 1), ("b", 2, "off", 2), ("b", 2, "on", 2)]
    graphs = pd.DataFrame(rows, columns=["program", "ranks", "switch", "graphs"])
    said = figures.figure(
        Report("one_compile", "", "gloo · cpu", {"first": pd.DataFrame(), "graphs": graphs})
    )
    assert "Of 2 programs whose graphs differ by rank, the switch makes 1 equal" in said.summary
    point = {"store": "aot_compile", "form": "mesh", "switch": "on", "outcome": "right"}
    carried = pd.DataFrame([point | {"rank": rank} for rank in (0, 1)])
    said = figures.portability(carried, "gloo · cpu").summary
    assert "aot_compile, mesh, on: rank 0 right" in said and said.startswith("In 1 of 1 ways every rank runs")


def test_first_calls_are_summed_up_by_their_slowest_rank_and_all_cpu_seconds():
    rows = [(2, "alone", 1.0, 1.0), (2, "each", 2.0, 1.5), (2, "each", 3.0, 2.5)]
    table = figures.first_calls(pd.DataFrame(rows, columns=["ranks", "way", "seconds", "cpu_s"]), "here")
    assert table.loc[(2, "each")].tolist() == [3.0, 4.0]
    assert list(table.index) == [(2, "alone"), (2, "each")] and table.columns.name == "here"


def test_tables_without_rows_are_drawn():
    graphs = pd.DataFrame(columns=["program", "ranks", "switch", "graphs"])
    carried = pd.DataFrame(columns=["store", "form", "switch", "rank", "outcome"])
    assert "No program was compiled" in figures.constants(graphs, "gloo · cpu").summary
    assert "Nothing was stored" in figures.portability(carried, "gloo · cpu").summary


def test_the_text_of_a_graph_has_no_file_names():
    graph = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    assert program.plain_text(graph).splitlines()[-1] == "return add" and "#" not in program.plain_text(graph)
