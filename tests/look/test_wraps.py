"""What look puts around torch's functions takes every call that these take."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from labkit.look.attempt import attempt
from labkit.look.conditions import Condition
from labkit.look.program import Program
from labkit.look.steps import Options

WRAPS = Path(__file__).parent / "scripts" / "wraps.py"


@pytest.mark.slow
@pytest.mark.guard
def test_every_function_that_look_wraps_takes_its_arguments_by_position_and_by_name(tmp_path):
    given = argparse.Namespace(n=1, backend="gloo", timeout=None, stall=None, verify=False)
    out = tmp_path / "out.json"
    options = Options(values=True, condition=Condition(rank=0, batch=100))
    ended = attempt(given, Program(str(WRAPS), arguments=(str(out),), backend="gloo"), options, tmp_path)
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
