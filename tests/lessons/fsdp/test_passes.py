"""The order of calls in Inductor's code, and spans of what FSDP2 marks."""

from __future__ import annotations

import lesson_cells
import pytest

from course.fsdp import passes
from course.fsdp.exercises import jobs
from course.fsdp.logs import LOGS
from course.fsdp.measure import apart
from course.fsdp.moments import spans
from labkit import Ranks
from labkit.ranks.output import quiet_stderr

LESSON = "14_fsdp_and_passes"


def test_collectives_with_a_matmul_before_their_wait_are_counted():
    assert passes.covered("all_gather wait mm all_gather wait mm".split()) == (0, 2)
    assert passes.covered("all_gather all_gather wait mm wait mm".split()) == (1, 2)
    assert passes.covered("mm reduce_scatter mm mm wait".split()) == (1, 1)
    assert passes.covered([]) == (0, 0)


def test_a_setting_that_inductor_lacks_is_no_quiet_one():
    from torch._inductor import config

    with pytest.raises(ValueError, match="no setting 'raise_coms'"):
        passes.written(config, {"gbytes": 1, "tflops": 1}, {"raise_coms": True}, len)


def test_spans_are_read_from_what_torch_marks():
    marks = [("all_gather (a)", 0, 1), ("all_gather_copy_out (a)", 2, 3), ("post_forward (a)", 5, 6)]
    table = spans({"one": [(f"FSDP::{name}", start, end) for name, start, end in marks]})
    assert table[["unit", "what", "start", "end"]].values.tolist() == [
        ["a", "gathering", 0.0, 0.003],
        ["a", "whole", 0.003, 0.006],
    ]
    with pytest.raises(ValueError, match="no all-gather is marked in the step of 'none'"):
        spans({"none": [("aten::mm", 0, 1)]})


def test_the_logs_say_what_the_key_of_the_exercise_says():
    gathers = {job: [log[rank].count("all_gather\n") for rank in (0, 1)] for job, log in LOGS.items()}
    assert gathers == {"A": [1, 1], "B": [2, 3], "C": [0, 0]}
    assert "blocks" not in LOGS["A"][0] and jobs.name == "fsdp.jobs"
    assert 2 * 0.5869 == pytest.approx(1.1737, abs=1e-4)


def _calls(space, settings):
    with quiet_stderr():
        return space["chain_calls"](settings)


def _ahead(calls):
    """The gathers that start before the first matmul."""
    return calls[: calls.index("mm")].count("all_gather")


@pytest.mark.slow
def test_torch_s_two_passes_cover_as_much_on_chains_of_other_sizes_and_the_peak_memory_pass_undoes_the_exercise_s():
    """The link's rates are not the lesson's either; with small matmuls overlap scheduling covers less."""
    space = lesson_cells.copied(LESSON) | {"written": passes.written, "apart": apart}
    for name in ("fsdp-sol-sink", "fsdp-orders"):
        exec(lesson_cells._sources(LESSON)[name].partition("\ncalls = {}\n")[0], space)
    ways, limit = space["WAYS"], "aten_distributed_optimizations.max_memory_increase_gb"
    scheduler, overlap = ways["scheduler passes + reorder_for_peak_memory"], ways["enable_overlap_scheduling"]
    tried = (ways["as written"], ways["my_sink_solution"], ways["my_sink_solution + reorder_for_peak_memory"])
    with Ranks(3, device="cpu", backend="gloo", quiet=True, live=False, timeout=400) as three:

        def found(width, layers, rates, *settings):
            space.update(WIDTH=width, LAYERS=layers, RATES=rates)
            every = [three.run(_calls, space, each) for each in settings]
            assert max(error for ranks in every for _, error in ranks.values()) < 1e-5
            return [ranks[0][0] for ranks in every]

        def covered(calls):
            return [passes.covered(part)[0] for part in calls]

        for width, layers, rates in (
            (96, 5, {"gbytes": 50, "tflops": 0.05}),
            (384, 4, {"gbytes": 2, "tflops": 1}),
        ):
            calls = found(width, layers, rates, *tried, scheduler, overlap)
            most = [layers - 1, layers - 1]
            assert [*map(covered, calls)] == [[0, 0], most, [layers - 1, 0], most, most], (
                width,
                layers,
                rates,
            )
        assert _ahead(calls[-1][0]) > 2 == _ahead(calls[1][0])
        (bound,) = found(384, 4, rates, overlap | {limit: 0.0})
        assert _ahead(bound[0]) == 1
        (small,) = found(48, 5, {"gbytes": 50, "tflops": 0.05}, overlap)
        assert covered(small)[1] == 1
