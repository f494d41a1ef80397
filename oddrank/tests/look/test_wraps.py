"""What look puts around torch's functions takes every call that these take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oddrank.look.conditions import Condition
from oddrank.look.program import Program
from oddrank.look.steps import Options
from oddrank.look.torchrun import Request, run
from oddrank.look.watch import Limits

WRAPS = Path(__file__).parent / "scripts" / "wraps.py"


@pytest.mark.slow
@pytest.mark.guard
def test_every_function_that_look_wraps_takes_its_arguments_by_position_and_by_name(tmp_path):
    out = tmp_path / "out.json"
    options = Options(values=True, condition=Condition(rank=0, batch=100))
    program = Program(str(WRAPS), arguments=(str(out),), backend="gloo")
    ended = run(Request(program, options, Limits()), 1, tmp_path)
    assert not ended.said
    found = json.loads(out.read_text())
    assert {place: said for place, said in found["wrong"].items() if said} == {}
    names = {place.rpartition(".")[2] for place in found["wrong"]}
    assert {
        "load_state_dict",
        "backward",
        "no_sync",
        "__iter__",
        "compile",
        "post_compile",
        "pre_forward",
    } <= names
    assert found["own"] == {"compiled": 20.0, "step": [1, 2, [3]]}
