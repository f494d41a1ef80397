"""What sets the length of a step in the three traces of lesson 06's exercise, from the files; its cells read them."""

from __future__ import annotations

import gzip
import json
import math
import types

import lesson_cells
import pandas as pd
import pytest

from course.streams.traces import trace_file

LESSON = "06_streams_and_events"


@pytest.fixture(scope="module")
def cells():
    names = {"gzip": gzip, "json": json, "math": math, "pd": pd, "trace_file": trace_file}
    return types.SimpleNamespace(**lesson_cells.run(LESSON, "streams-trace", **names))


def lanes(cells, letter):
    found = cells.spans(letter, "two streams")
    return [found[found["lane"] == lane] for lane in ("stream 13", "stream 17")], found


def calls(found, of):
    """The host's launch of each kernel or copy."""
    host = found[found["lane"] == "host"].set_index("correlation")
    return host.loc[of["correlation"]]


def length(rows):
    return (rows["end"] - rows["start"]).sum()


def beside(first, second):
    """Milliseconds that the kernels of both streams share."""
    return sum(
        max(0.0, min(a.end, b.end) - max(a.start, b.start))
        for a in first.itertuples()
        for b in second.itertuples()
    )


def test_small_kernels_wait_for_their_launches(cells):
    (first, second), found = lanes(cells, "A")
    assert beside(first, second) == 0 and length(first) + length(second) < 0.55
    assert (
        calls(found, second)["start"].iloc[0] > first["end"].iloc[-1]
    )  # launched when the first chain had ended
    late = second["start"].to_numpy() - calls(found, second)["start"].to_numpy()
    assert (late < 0.05).all()  # each starts directly after its launch


def test_a_pageable_copy_holds_the_host_and_a_pinned_one_does_not(cells):
    for letter, shortest, longest in (("B", 9.0, 9.6), ("C", 0.0, 0.1)):
        (matmuls, copy), found = lanes(cells, letter)
        call = calls(found, copy)
        assert shortest < length(call) < longest and list(copy["bytes"]) == [64 * 2**20]
        assert (calls(found, matmuls)["end"] < call["start"].iloc[0]).all()
    (matmuls, copy), found = lanes(cells, "C")
    assert beside(matmuls, copy) == pytest.approx(length(copy))
    held = found[(found["lane"] == "host") & (found["name"] != "cudaDeviceSynchronize")]
    assert (held["end"] - held["start"]).max() < 0.5
