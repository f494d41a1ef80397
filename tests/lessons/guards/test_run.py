"""Lesson 09 from top to bottom, and what its report and its cells say; its map in another layer, too."""

from __future__ import annotations

import re

import lesson_cells
import pytest
import torch
import torch.nn.functional as F
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401
from torch import nn

from labkit.ranks.output import quiet_stderr

LESSON = "09_guards_and_shapes"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]
LETTERS = {"first compile": "1", "reused": ".", "went dynamic": "D", "recompiled": "R", "gave up": "X"}
# the calls of each row of the map, in the letters of section 5
MAP = {
    "sequence length": "1.D.........",
    "batch": "1.D.R.......",
    "int argument": "1.D.........",
    "float argument": "1.D...",
    "float for an operator": "1.RRRRRRRXX.",
    "bool argument": "1.R..",
    "dtype": "1.RR",
    "requires_grad": "1.R..",
    "grad mode": "1.R.",
    "waited for?": "1.R..",
    "a new lambda": "1.....",
    "a function": "1.RR",
    "loop count": "1.RRRRRRRXX.",
    "int on the module": "1.RRRRRRRXX.",
    "a list that grows": "1RRRRRRRXXXX",
    "a name": "1RRRRRRRXXXX",
    "lengths after names": "1RRRRRRRXXX.",
}


def test_each_thing_that_varies_does_what_the_map_says(run):
    """The row `strides` differs between releases of torch."""
    steps = run.table("guards", "steps")
    letters = steps["state"].map(LETTERS).groupby(steps["dimension"]).agg("".join)
    assert letters.drop("strides").to_dict() == MAP
    assert (steps.groupby("dimension")["value"].nunique() > 1).all(), "a thing that does not vary"
    gave_up = sum("X" in row for row in letters)
    assert f"measured: {gave_up} of {len(letters)} things" in run.text("guards-15")


class Trained(nn.Module):
    """No layer of the lesson: weights that require gradients, no collective, and the arguments used in other places."""

    index = 1

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(
        self, x, times=2, gain=1.0, centre=False, kind="gelu", repeats=1, past=(), act=F.relu, eps=0.5
    ):
        h = self.up(x.float()) + self.index + gain
        h = F.scaled_dot_product_attention(h, h, h, scale=eps)  # another operator than the lesson's
        for _ in range(repeats):
            h = torch.relu(h) - times
        h = act(h) if kind.startswith("t") or centre else act(h) * len(kind)
        return h.mean() + sum(each.mean() for each in past)


def test_the_map_holds_in_another_layer(ranks):
    lesson = lesson_cells.definitions(LESSON, "guards-parameters", "guards-12", "guards-15")
    lesson |= {"quiet_stderr": quiet_stderr}  # in place: it is what the functions see
    for name, expected in MAP.items():
        states = ranks.run(lesson["walk"], name, Trained).same()
        assert "".join(map(LETTERS.get, states)) == expected, name


def test_blocks_share_one_limit_and_what_lifts_it(run):
    found = run.table("guards", "blocks").set_index("way").agg(tuple, axis=1).to_dict()
    assert found == {
        "as it is": ("8", "[9, 10, 11, 12]"),
        "fullgraph=True": ("FailOnRecompileLimitHit", ""),
        "layer is a tensor": ("1", "[]"),
        "layer is a float": ("2", "[]"),
        "allow_unspec_int_on_nn_module": ("2", "[]"),
        "TORCH_COMPILE_DYNAMIC_SOURCES": ("1", "[]"),
        "fail_on_recompile_limit_hit": ("FailOnRecompileLimitHit", ""),
        "recompile_limit=12": ("12", "[]"),
        "isolate_recompiles=True": ("12", "[]"),
        "isolate_recompiles=True, accumulated 10": ("10", "[11, 12]"),
    }


def test_what_a_length_costs_under_each_setting(run):
    """Lengths 4 to 12, then 1, 2 and 3: what a setting promises holds for them, or is refused."""
    found = run.table("guards", "sizes").set_index("setting").agg(list, axis=1).to_dict()
    refused, at_the_limit = " ConstraintViolationError", " FailOnRecompileLimitHit"
    assert found == {
        "default": ["1D.......R..", "1D...D...R..", "1RRRRRRR" + at_the_limit],
        "mark_dynamic": ["D........R..", "D....D...R..", refused],
        "TORCH_COMPILE_DYNAMIC_SOURCES": ["D........D..", "D....D...D..", "DDDDDDDD" + at_the_limit],
        "mark_dynamic(min=2, max=16)": ["D........" + refused, refused, refused],
        "mark_unbacked": ["D...........", " UserError", " UserError"],
        "dynamic=True": ["D........D..", "D....D...D..", "DDDDDDDD" + at_the_limit],
    }
    under = dict(re.findall(r"^(torch._check|default|\w+_on_recompile) +(.*)$", run.text("guards-28"), re.M))
    assert re.fullmatch(r"D\.{11} \w*Error", under.pop("torch._check"))
    assert under == {
        "default": "1D.DR.",
        "eager_on_recompile": "1D.XX.",
        "fail_on_recompile": "1D. RuntimeError",
    }


def test_an_odd_shape_ends_in_an_error_where_the_compile_outlasts_the_timeout(run):
    """On a slow machine the others may end in an error, too."""
    lines = dict(re.findall(r"^(timeout .*?): (.*)$", run.text("guards-32"), re.M))
    assert len(lines) == 8
    for name, line in lines.items():
        how, _, rank = name.rpartition(", rank ")
        if how in ("timeout 2 s", "timeout 2 s, guard collectives"):
            assert line.startswith("error"), name
        elif line.startswith("right"):  # one rank compiles again, or both after a warm-up
            assert line.count(" | - ") == (rank == "1" or how.endswith("warmed up")), name
