"""The order of calls in Inductor's code, and spans of what FSDP2 marks."""

from __future__ import annotations

import pytest

from course.fsdp import passes
from course.fsdp.exercises import jobs
from course.fsdp.logs import LOGS
from course.fsdp.moments import spans


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
