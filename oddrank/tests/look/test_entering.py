"""Inputs of a tensor-parallel group that differ between its ranks, and groups in which they may."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from oddrank.look.entering import ENTERS, GIVEN, TYPES, unlike

SCRIPT = Path(__file__).parent / "scripts" / "tensor_parallel.py"
EPS = 1.2e-7**0.5


def enters(
    ranks: str = "0,1", held: Any = None, alike: bool = True, tolerance: float = EPS, **more: Any
) -> dict:
    sketch = "" if held is None else json.dumps([held, held / 2, -held, 0.0])
    row = {"kind": ENTERS, "place": "train.py:9", "dimension": "tp", "ranks": ranks, "number": 0}
    return row | {"alike": alike, "what": "int64 [2]", "sketch": sketch, "tolerance": tolerance} | more


def given(held: float, tolerance: float = 0.0) -> dict:
    return enters("", held, False, tolerance, kind=GIVEN, place="", dimension="")


def told(*ranks: list[dict[str, Any]]) -> list[str]:
    rows = [row | {"rank": rank} for rank, mine in enumerate(ranks) for row in mine]
    return [
        f"{one.place}: {one.said}" for one in unlike(pd.DataFrame(rows, columns=list(TYPES)).astype(TYPES))
    ]


def test_a_tensor_that_differs_is_told_at_its_line_and_rounding_is_not():
    (said,) = told([enters(held=2.0)], [enters(held=2.5)])
    assert said.startswith("train.py:9: a tensor enters DTensor here, taken for replicated over dimension tp")
    assert "2 on rank 0, 2.5 on rank 1" in said
    assert told([enters(held=2.0)], [enters(held=2.00001)]) == []
    assert (
        len(told([enters(held=2.0, tolerance=0.0)], [enters(held=2.00001, tolerance=0.0)])) == 1
    )  # whole numbers
    assert told([enters(held=2.0)], []) == []


def test_what_a_graph_holds_is_told_by_the_first_input_of_compiled_calls():
    (said,) = told([enters(), given(3.0)], [enters(), given(4.0)])
    assert said.startswith("train.py:9: what a compiled call is given enters DTensor here")
    assert told([enters(), given(3.0)], [enters(), given(3.0)]) == []
    # a part enters a later layer; with sequence parallelism it enters the first, or what enters is not what is given
    part = enters(alike=False, place="train.py:11", number=1)
    assert len(told([enters(), part, given(3.0)], [enters(), part, given(4.0)])) == 1
    assert told([part, enters(), given(3.0)], [part, enters(), given(4.0)]) == []
    other = enters(what="float32 [2, 8]")
    assert told([other, given(3.0)], [other, given(4.0)]) == []
    # of what was seen entering, the input of a compiled call says nothing
    assert told([enters(held=1.0), given(3.0)], [enters(held=1.0), given(4.0)]) == []
    assert told([given(3.0)], [given(4.0)]) == [], "data parallelism enters nothing"


def test_groups_are_compared_within_themselves():
    pairs = [("0,1", 3.0), ("0,1", 3.0), ("2,3", 5.0), ("2,3", 5.0)]
    assert told(*([enters(ranks), given(held)] for ranks, held in pairs)) == []
    pairs[3] = ("2,3", 6.0)
    (said,) = told(*([enters(ranks), given(held)] for ranks, held in pairs))
    assert "5 on rank 2, 6 on rank 3" in said


@pytest.mark.slow
def test_a_tensor_parallel_job_with_a_batch_for_each_rank_is_told(tmp_path):
    words = ["-m", "oddrank", "look", str(SCRIPT), "own", "aot_eager"]
    ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, timeout=900)
    said = "what a compiled call is given enters DTensor here, taken for replicated over dimension tensor"
    line = 1 + SCRIPT.read_text().splitlines().index("    model(ids).logsumexp(-1).mean().backward()")
    assert ran.returncode == 0 and f"tensor_parallel.py:{line}: {said}" in ran.stdout, ran.stdout + ran.stderr
