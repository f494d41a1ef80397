"""The real offloading passes, and the model of time and memory that is made of their graphs."""

from __future__ import annotations

import pytest
from labkit.lessons.compiled_streams.offload_figures import offload as view
from labkit.lessons.compiled_streams.offload_figures import offload_table

from labkit.lessons.compiled_streams import offload
from labkit.lessons.compiled_streams.offload import OffloadGraphs, OffloadNode, Rates, step
from labkit.lessons.shared.streams import StreamError, simulate

pytest.importorskip("torch")
LATE = "own stream, late wait, prefetch"


@pytest.fixture(scope="module")
def graphs():
    return offload.offloaded(layers=4, width=2048, tokens=32768)


def test_bad_input_is_named():
    with pytest.raises(StreamError, match="no variant is called 'x'"):
        offload.offloaded(["x"])
    with pytest.raises(StreamError, match="layers must be a whole number of 1 or more, got 0"):
        offload.offloaded(layers=0)
    with pytest.raises(StreamError, match="there is no layer 9; there are 0 to 5"):
        offload.offloaded(choose=[9])
    with pytest.raises(StreamError, match="link_gbytes must be a number above 0, got -1"):
        Rates(link_gbytes=-1)
    with pytest.raises(ValueError, match="no variant to compare"):
        offload_table({})


def test_a_step_by_hand():
    # 2 GB over 1 GB/s takes 2000 ms; the kernel's 1e12 flops at 1 Tflop/s take 1000
    mib = 2**20
    forward = (
        OffloadNode("x", "input", "", (), mib),
        OffloadNode("mm", "kernel", "mm", ("x",), 2 * mib, 10**12),
        OffloadNode("away", "offload", "offload", ("mm",), moved=2 * 10**9),
        OffloadNode("wait", "wait", "wait", ("away", "mm"), of="away"),
    )
    run = simulate(step(OffloadGraphs("by hand", forward, (), (), ()), Rates(1.0, 1.0, 1.0)))
    assert run.makespan == pytest.approx(3000) and run.peak == pytest.approx(3) and not run.races
    assert run.memory["used"].iloc[-1] == pytest.approx(1)  # the product is freed behind its wait


@pytest.mark.slow
def test_the_variants_do_what_they_are_called(graphs):
    assert not any("offload" in word for word in graphs["none"].words())
    assert graphs["same stream"].words()[2].startswith("cpu_offload")
    now, late = graphs["own stream"].words(), graphs[LATE].words()
    assert now[now.index("async_cpu_offload_relu") + 1] == "cpu_offload_relu"
    assert late[late.index("async_cpu_offload_relu") + 1] != "cpu_offload_relu"
    assert all(word.startswith("cpu_offload") for word in late[-3:])


@pytest.mark.slow
def test_the_model_trades_time_for_memory_and_has_no_race(graphs):
    assert not any(simulate(step(one)).races for one in graphs.values())
    table = offload_table(graphs)
    assert table.loc["own stream", "ms"] == pytest.approx(table.loc["same stream", "ms"])
    assert table.loc["none", "ms"] < table.loc[LATE, "ms"] < table.loc["own stream", "ms"]
    assert table.loc["own stream", "peak MiB"] < table.loc[LATE, "peak MiB"] <= table.loc["none", "peak MiB"]
    slow, fast = (offload_table(graphs, Rates(link_gbytes=g))["slower, %"][LATE] for g in (20, 400))
    assert slow > fast >= 0


@pytest.mark.slow
def test_the_view_says_what_it_draws_and_can_be_varied(graphs):
    shown = view(graphs)
    assert "own stream" in shown.text and shown.figure.summary.endswith("[simulated]")
    figure, text = shown.draw(tflops=100.0, memory_gbytes=1000.0, link_gbytes=10.0)
    assert text != shown.text and figure.png()[:4] == b"\x89PNG"
    if shown.widget is not None:
        shown.close()
