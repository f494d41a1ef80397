"""The passes of lesson 14 on a chain of another size, on three ranks; settings and marks that it would misread."""

from __future__ import annotations

import lesson_cells
import pytest

from course.fsdp import passes
from course.fsdp.measure import apart
from course.fsdp.moments import spans
from labkit import Ranks
from labkit.ranks.output import quiet_stderr

LESSON = "14_fsdp_and_passes"
WIDTH, LAYERS, RATES = 96, 5, {"gbytes": 2, "tflops": 0.02}  # not the lesson's


def test_what_inductor_or_torch_does_not_know_is_an_error():
    from torch._inductor import config

    with pytest.raises(ValueError, match="no setting 'raise_coms'"):
        passes.written(config, {"gbytes": 1, "tflops": 1}, {"raise_coms": True}, len)
    with pytest.raises(ValueError, match="no all-gather is marked in the step of 'none'"):
        spans({"none": [("aten::mm", 0, 1)]})


def _calls(space, settings):
    with quiet_stderr():
        return space["chain_calls"](settings)


def _ahead(calls):
    """The gathers that start before the first matmul."""
    return calls[: calls.index("mm")].count("all_gather")


@pytest.mark.slow
def test_torch_s_two_passes_cover_as_much_on_another_chain_and_the_peak_memory_pass_undoes_the_exercise_s():
    """The link's rates are not the lesson's either; with small matmuls overlap scheduling covers less."""
    space = lesson_cells.copied(LESSON) | {"written": passes.written, "apart": apart}
    for name in ("fsdp-sol-sink", "fsdp-orders"):
        exec(lesson_cells._sources(LESSON)[name].partition("\ncalls = {}\n")[0], space)
    ways, limit = space["WAYS"], "aten_distributed_optimizations.max_memory_increase_gb"
    overlap = ways["enable_overlap_scheduling"]
    most, none = [LAYERS - 1, LAYERS - 1], [0, 0]
    expected = {
        "as written": none,
        "my_sink_solution": most,
        "my_sink_solution + reorder_for_peak_memory": [LAYERS - 1, 0],
        "scheduler passes + reorder_for_peak_memory": most,
        "enable_overlap_scheduling": most,
    }
    with Ranks(3, device="cpu", backend="gloo", quiet=True, live=False, timeout=400) as three:

        def found(settings, **sizes):
            space.update({"WIDTH": WIDTH, "LAYERS": LAYERS, "RATES": RATES} | sizes)
            ranks = three.run(_calls, space, settings)
            assert max(error for _, error in ranks.values()) < 1e-5
            return ranks[0][0]

        calls = {name: found(ways[name]) for name in expected}
        assert {name: [passes.covered(part)[0] for part in both] for name, both in calls.items()} == expected
        assert _ahead(calls["enable_overlap_scheduling"][0]) > 2 == _ahead(calls["my_sink_solution"][0])
        assert _ahead(found(overlap | {limit: 0.0})[0]) == 1
        small = found(overlap, WIDTH=48, RATES={"gbytes": 50, "tflops": 0.05})
        assert passes.covered(small[1])[0] == 1
