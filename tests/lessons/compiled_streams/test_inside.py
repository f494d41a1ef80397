"""What the compiler does around its stream graphs, and the shipped text of Inductor."""

from __future__ import annotations

import json
import re

import pytest

from course.compiled_streams import inside
from course.shared.streams import StreamError, captured
from tools import recapture

torch = pytest.importorskip("torch")


def two_streams(x, one, two):
    a = torch.sin(x)
    with one:
        b = torch.cos(a)
    with two:
        c = torch.tanh(a)
    return b + c


def test_the_shipped_text_has_one_kernel_without_streams_and_one_for_each_border_with():
    text = json.loads(recapture.INDUCTOR.read_text())
    kernels = {name: re.findall(r"(triton_\w+)\.run\(", text[name]) for name in ("plain", "streamed")}
    assert len(kernels["plain"]) == 1 and len(kernels["streamed"]) == 4
    assert "with stream1:" in text["streamed"] and "with stream" not in text["plain"]
    across = [
        k for k in re.findall(r"(triton_\w+)\.run\(", text["event_between"]) if "sin" in k and "cos" in k
    ]
    assert len(across) == 1  # an event that is recorded between them does not keep them apart
    assert text["label"].startswith("captured, not run") and "/tmp" not in text["streamed"] + text["plain"]


def test_numbers_are_checked_before_a_child_starts():
    with pytest.raises(StreamError, match="streams must be a number from 1 to 16"):
        inside.look(two_streams, torch.ones(2), streams=0)


@pytest.mark.slow
def test_the_prefix_fills_a_table_and_nodes_carry_its_index():
    prefix, table = inside.look(two_streams, torch.ones(4), streams=2)
    assert table == ["stream 0, the ambient one", "stream 1", "stream 2"]
    assert {"LOAD_FAST one", "LOAD_FAST two"} <= set(prefix)
    graphs = captured.capture(two_streams, torch.ones(4), streams=2)
    on = {n.target: n.stream for n in graphs.forward[0].nodes if n.word == "kernel"}
    assert on == {"sin": "default", "cos": "s1", "tanh": "s2", "add.Tensor": "default"}
    assert "{'stream': 1}" in graphs.dynamo[0].text and "set_stream" not in graphs.dynamo[0].text


@pytest.mark.slow
def test_the_cache_does_not_see_streams():
    (source,) = [cell for cell in recapture.cells("07_streams_in_compile") if "def compile_both(" in cell]
    names = "import os, tempfile, torch\nfrom course.compiled_streams import inside"
    space = recapture.run([names, source.partition("\n\nrows = ")[0]])
    for functions in (("plain", "streamed"), ("streamed", "plain")):
        rows = captured.in_a_child(space["compile_both"], *(space[name] for name in functions))
        assert [row[:3] for row in rows] == [(functions[0], 0, 1), (functions[1], 1, 0)]
        # each runs the code of the first of its order, and a CPU has no stream
        assert [bool(row[3]) for row in rows] == [functions[0] == "streamed"] * 2
