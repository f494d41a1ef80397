"""What lesson 06 says of the recorded traces, from the files themselves; its cells read them."""

from __future__ import annotations

import json
import math
import types

import lesson_cells
import pandas as pd
import pytest

from course.streams.traces import UNNAMED, medians, trace_file

LESSON = "06_streams_and_events"
FORMS = ("one stream", "two streams")


@pytest.fixture(scope="module")
def cells():
    import gzip

    names = {"gzip": gzip, "json": json, "math": math, "pd": pd, "trace_file": trace_file}
    return types.SimpleNamespace(**lesson_cells.run(LESSON, "streams-trace", **names))


def lanes(cells, name, form="two streams"):
    found = cells.spans(name, form)
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


@pytest.mark.parametrize(("name", "long"), [("filling", 0), ("one_fills", 0)])
def test_the_second_stream_begins_in_the_last_wave_of_a_kernel_that_fills_the_gpu(cells, name, long):
    (first, second), _ = lanes(cells, name)
    _, device = cells.events_of(name)
    kernel = first.iloc[long]
    waves = math.ceil(kernel.blocks / device["numSms"])
    assert (kernel.blocks, device["numSms"], waves, waves * 132 - 512) == (512, 132, 4, 16)
    last_wave = kernel.start + (kernel.end - kernel.start) * (waves - 1) / waves
    assert second["start"].iloc[0] == pytest.approx(last_wave, abs=0.01)


def test_a_block_of_the_long_kernel_takes_all_registers_of_a_multiprocessor(cells):
    events, device = cells.events_of("filling")
    kernels = [event["args"] for event in events if event["cat"] == "kernel"]
    assert {k["occupancy"]["allocatedRegistersPerBlock"] for k in kernels} == {
        device["regsPerMultiprocessor"]
    }
    assert {math.prod(k["grid"]) for k in kernels} == {512}


def test_bars_beside_each_other_save_nothing(cells):
    (first, second), _ = lanes(cells, "filling")
    one = cells.spans("filling", "one stream").query("kind == 'compute'")
    assert beside(first, second) > 3
    spans = [found["end"].max() - found["start"].min() for found in (one, pd.concat([first, second]))]
    assert spans[1] == pytest.approx(spans[0], rel=0.01)
    times = medians("filling").loc["filling"]
    assert times["two streams"] == pytest.approx(times["one stream"], rel=0.001)
    assert length(second.head(1)) > 1.2 * length(first.head(1))  # it begins on few multiprocessors


def test_small_kernels_wait_for_their_launches(cells):
    (first, second), found = lanes(cells, "small")
    assert beside(first, second) == 0 and length(first) + length(second) < 0.55
    assert medians("small").loc["small", "two streams"] == pytest.approx(2.8, abs=0.05)
    assert (
        calls(found, second)["start"].iloc[0] > first["end"].iloc[-1]
    )  # launched when the first chain had ended
    late = second["start"].to_numpy() - calls(found, second)["start"].to_numpy()
    assert (late < 0.05).all()  # each starts directly after its launch


def test_a_pageable_copy_holds_the_host_and_a_pinned_one_does_not(cells):
    for name, shortest, longest in (("pageable_copy", 9.0, 9.6), ("pinned_copy", 0.0, 0.1)):
        (matmuls, copy), found = lanes(cells, name)
        call = calls(found, copy)
        assert shortest < length(call) < longest and list(copy["bytes"]) == [64 * 2**20]
        assert (calls(found, matmuls)["end"] < call["start"].iloc[0]).all()
    (matmuls, copy), found = lanes(cells, "pinned_copy")
    assert beside(matmuls, copy) == pytest.approx(length(copy))
    held = found[(found["lane"] == "host") & (found["name"] != "cudaDeviceSynchronize")]
    assert (held["end"] - held["start"]).max() < 0.5


def test_the_short_chain_is_launched_long_before_it_begins(cells):
    (long, chain), found = lanes(cells, "one_fills")
    assert len(long) == 1 and len(chain) == 80
    assert calls(found, chain)["start"].iloc[0] < chain["start"].iloc[0] - 1


def test_letters_are_cases_and_all_have_both_forms(cells):
    assert sorted(UNNAMED) == list("ABC") and len(set(UNNAMED.values())) == 3
    for letter in UNNAMED:
        assert [len(cells.spans(letter, form)) > 8 for form in FORMS] == [True, True]
