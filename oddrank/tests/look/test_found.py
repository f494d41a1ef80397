"""What a look makes of the records of ranks: graphs that differ in sizes only, and records of another oddrank."""

from __future__ import annotations

import pandas as pd
import pytest
from oddrank.look import look, rows, step_collectives
from oddrank.record import Compile, Tables

from labkit.report import Report

GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, {0}][{0}, 1]cpu"):
        y: "f32[4, {0}][{0}, 1]cpu" = L_x_.view(4, {0});  L_x_ = None
        z: "f32[4, {0}][{0}, 1]cpu" = y {1};  y = None
        return (z,)
"""


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (GRAPH.format(16, "+ 1"), True),
        (GRAPH.format(8, "+ 2"), False),  # a number that is no size, such as the rank
        (GRAPH.format(16, "+ 1").replace("f32", "f64"), False),
        (GRAPH.format(16, "- 1"), False),
    ],
)
def test_graphs_that_differ_in_sizes_only_are_no_difference(other, alike):
    codes = [GRAPH.format(8, "+ 1"), other]
    whole = Tables()
    whole.compiles += (Compile(rank, "0/0", func="Net.forward", outcome="graph") for rank in (0, 1))
    texts = [(rank, "0/0", "Net.forward", code, "") for rank, code in enumerate(codes)]
    held = {"texts": pd.DataFrame(texts, columns=list(look.TEXTS))}
    looked = look.Look("train.py", Tables(), whole, {}, held=held)
    assert looked.differing("dynamo") and looked.resized() == ["0/0 Net.forward"] * alike


def test_a_record_of_another_labkit_is_refused_by_what_it_lacks(tmp_path):
    tables = rows.frames(Tables())
    tables |= {f"all_{part}": tables[part] for part in look.WHOLE}
    tables |= {name: pd.DataFrame([], columns=list(types)) for name, types in look.HELD.items()}
    about = {"rank": 0, "world_size": 1, "origin_ns": 0, "clock": "", look.RECORDED: 0}

    def saved(tables: dict[str, pd.DataFrame]) -> None:
        Report("rank-0", "train.py", "gloo · cpu", tables, provenance=about).save(tmp_path)

    saved(tables | {"calls": tables["calls"].drop(columns="group")})
    with pytest.raises(
        ValueError, match=r"rank-0\.json .* table calls lacks group: another version of oddrank"
    ):
        look.gather([tmp_path], tmp_path)
    saved({name: table for name, table in tables.items() if name != "asked"})
    with pytest.raises(ValueError, match="lacks the table asked"):
        look.read(tmp_path)
    assert set(step_collectives.TYPES) == set(tables["calls"])
    saved(tables)
    look.gather([tmp_path], tmp_path)


def test_how_much_longer_a_recorded_step_took_is_of_the_slowest_rank_and_needs_later_steps():
    ranks = [
        dict(zip(look.TIMES, ([12.0, 9.0, 9.0], [4.0] * 5), strict=True)),
        dict(zip(look.TIMES, ([9.0, 9.0, 12.0], [6.0] * 5), strict=True)),
    ]
    (said,) = look._factor(ranks)
    assert said.startswith("a recorded step took 2.00 times as long as one after it: 12.00 ms")
    assert look._factor([one | {look.TIMES[1]: [6.0] * 4} for one in ranks]) == []
    assert look._factor([{}, {}]) == []
