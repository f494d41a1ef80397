"""Raw ranges made tidy, on hand-written ranges whose answer is known."""

from __future__ import annotations

import pytest
from oddrank.record.profile import FORWARD, RawEvent
from oddrank.record.segments import partition
from oddrank.record.timeline import classify, collective_op, tidy

MAIN, OTHER, THIRD = 1, 7, 8
REGION, LOOKUP = "Torch-Compiled Region: ", "TorchDynamo Cache Lookup"


def on(thread: int, *ranges: tuple[str, int, int]) -> list[RawEvent]:
    return [RawEvent(name, start, end, thread) for name, start, end in ranges]


def body(*ranges: tuple[str, int, int]) -> list[RawEvent]:
    return on(MAIN, ("oddrank.record", 0, 1000), *ranges)


def kinds(events) -> list[tuple[str, str]]:
    return [(e.kind, e.name) for e in events if e.kind != "forward"]


def test_a_functional_collective_is_one_however_many_ranges_it_has():
    found = tidy(
        body(
            ("_c10d_functional::all_reduce_", 10, 40),
            ("c10d::allreduce_", 12, 38),
            ("_c10d_functional::wait_tensor", 50, 90),
        )
    )
    assert kinds(found) == [
        ("collective", "_c10d_functional::all_reduce_"),
        ("wait", "_c10d_functional::wait_tensor"),
    ]


@pytest.mark.parametrize(
    "ranges",
    [
        [("c10d::allreduce_", 10, 40), ("shm:all_reduce", 12, 38)],
        [("shm:all_reduce", 12, 38)],
        [("nccl:all_reduce", 12, 38)],
        [("_c10d_functional_autograd::all_reduce", 5, 50), ("_c10d_functional::all_reduce", 6, 40)],
    ],
)
def test_a_backend_range_on_the_main_thread_is_counted_once(ranges):
    assert [kind for kind, _ in kinds(tidy(body(*ranges)))] == ["collective"]


def test_spellings_of_one_operation_agree():
    assert collective_op("c10d::_allgather_base_") == collective_op(
        "_c10d_functional::all_gather_into_tensor"
    )
    assert collective_op("c10d::allreduce_") == collective_op("shm:all_reduce") == "all_reduce"


def test_operators_inside_compiled_code_and_inside_operators_are_left_out():
    found = tidy(
        body(
            (REGION + "0/0", 10, 200),
            ("## Call CompiledFxGraph abc ##", 20, 100),
            ("aten::addmm", 30, 60),
            ("aten::linear", 300, 400),
            ("aten::addmm", 310, 390),
        )
    )
    assert [kind for kind, _ in kinds(found)] == ["region", "compiled", "op"]
    assert found[-1].name == "aten::linear"


def test_a_collective_inside_compiled_code_and_inside_an_operator_is_kept():
    found = tidy(
        body(
            ("## Call CompiledFxGraph abc ##", 20, 100),
            ("_c10d_functional::all_reduce_", 30, 40),
            ("aten::addmm", 200, 300),
            ("PythonSubclass", 210, 290),
            ("_c10d_functional::wait_tensor", 220, 280),
        )
    )
    assert [kind for kind, _ in kinds(found)] == ["compiled", "collective", "dispatch", "wait"]
    assert [e.depth for e in found] == [0, 1, 2, 1, 2]


def test_user_annotations_and_autograd_ranges_are_no_operators():
    assert classify("my annotation") == ""
    assert classify("autograd::engine::evaluate_function: MmBackward0") == ""
    assert classify("mylib::fused") == "op"


def test_without_marks_everything_is_one_forward():
    found = tidy(body(("aten::mm", 10, 20), ("aten::mm", 500, 600)))
    assert {e.forward for e in found} == {0}
    assert [(e.start, e.end) for e in found if e.kind == "forward"] == [(0, 1000)]


def test_marks_number_forwards_and_leave_out_what_is_outside():
    found = tidy(
        body(
            ("aten::mm", 5, 9),
            ("oddrank.forward", 10, 20),
            ("aten::mm", 12, 18),
            ("aten::mm", 25, 28),
            ("oddrank.forward", 30, 40),
            ("aten::mm", 32, 38),
        )
    )
    assert [e.forward for e in found if e.kind == "op"] == [-1, 0, -1, 1]
    assert [(e.start, e.end) for e in found if e.kind == "forward"] == [(10, 20), (30, 40)]


def test_threads_are_named_by_what_they_do():
    raw = body(("aten::mm", 10, 20))
    raw += [RawEvent("gloo:all_reduce", 30, 40, OTHER, is_async=True)]
    raw += [RawEvent("gloo:all_reduce", 35, 45, THIRD, is_async=True)]
    raw += on(9, ("autograd::engine::evaluate_function: X", 50, 60), ("aten::mm", 52, 58))
    found = tidy(raw)
    assert {e.thread for e in found} == {"main", "gloo", "gloo 2", "autograd"}
    assert [e.kind for e in found if e.thread.startswith("gloo")] == ["transfer", "transfer"]
    assert {e.forward for e in found} == {0}


def test_a_blocking_collective_reaches_to_the_end_of_its_transfer():
    raw = body(("c10d::allreduce_", 100, 120), ("aten::mm", 400, 420))
    raw += [RawEvent("gloo:all_reduce", 130, 350, OTHER, is_async=True)]
    call = next(e for e in tidy(raw) if e.kind == "collective")
    assert (call.start, call.end) == (100, 350)


def test_an_asynchronous_collective_keeps_its_own_end():
    raw = body(("c10d::allreduce_", 100, 120), ("aten::mm", 200, 220))
    raw += [RawEvent("gloo:all_reduce", 130, 350, OTHER, is_async=True)]
    assert next(e for e in tidy(raw) if e.kind == "collective").end == 120


def test_a_blocking_collective_does_not_reach_out_of_its_region():
    raw = body((REGION + "0/0", 50, 200), ("c10d::allreduce_", 100, 120))
    raw += [RawEvent("gloo:all_reduce", 130, 350, OTHER, is_async=True)]
    assert next(e for e in tidy(raw) if e.kind == "collective").end == 120


def test_compiling_is_one_event_with_its_id_whatever_it_runs():
    found = tidy(
        body(
            ("dynamo", 10, 500),
            ("dynamo_data: compile_id=3/1", 11, 12),
            ("_compile.compile_inner (dynamo_timed)", 20, 480),
            ("aten::mm", 30, 40),
            ("_c10d_functional::all_reduce", 50, 60),
            (REGION + "3/1", 600, 700),
        )
    )
    assert kinds(found) == [("compile", "dynamo"), ("region", REGION + "3/1")]
    assert found[1].compile_id == "3/1"


def test_a_lookup_takes_the_id_of_the_region_it_found():
    found = tidy(body((LOOKUP, 10, 20), (REGION + "2/0", 21, 90), (LOOKUP, 100, 110), ("aten::mm", 120, 130)))
    assert [e.compile_id for e in found if e.kind == "lookup"] == ["2/0", ""]


def test_what_runs_in_a_region_carries_its_id():
    found = tidy(body((REGION + "1/0", 10, 90), ("c10d::allreduce_", 20, 30), (REGION + "2/0", 40, 80)))
    assert {e.kind: e.compile_id for e in found if e.kind == "collective"} == {"collective": "1/0"}
    inner = next(e for e in found if e.compile_id == "2/0")
    assert found[inner.parent].compile_id == "1/0" and inner.depth == 2


def test_kernels_and_copies_of_a_gpu_lie_on_streams():
    raw = body(("aten::mm", 10, 20))
    raw += [RawEvent("ampere_sgemm", 30, 60, -1, stream=7), RawEvent("Memcpy DtoH", 61, 70, -1, stream=8)]
    raw += [RawEvent("ncclDevKernel_AllReduce_Sum_f32", 40, 50, -1, stream=20)]
    device = {e.thread: e.kind for e in tidy(raw) if e.thread.startswith("stream")}
    assert device == {"stream 7": "kernel", "stream 8": "transfer", "stream 20": "transfer"}


def test_a_kernel_belongs_to_the_forward_that_launched_it():
    raw = body((FORWARD, 10, 20), (FORWARD, 30, 40))
    raw += [
        RawEvent("cudaLaunchKernel", 12, 13, MAIN, launch=5),
        RawEvent("cudaLaunchKernel", 32, 33, MAIN, launch=6),
    ]
    raw += [
        RawEvent("sgemm", 35, 45, -1, stream=7, launch=5),
        RawEvent("sgemm", 45, 60, -1, stream=7, launch=6),
    ]
    assert [e.forward for e in tidy(raw) if e.kind == "kernel"] == [0, 1]


@pytest.mark.parametrize(
    ("system", "kinds", "compute"), [(0, ["op"], 70), (99, [], 10)], ids=["its own", "of gloo's thread"]
)
def test_waiting_for_the_gpu_is_work_of_the_gpu_where_the_main_thread_waits(system, kinds, compute):
    wait = RawEvent("cudaStreamSynchronize", 30, 90, MAIN, system=system)
    found = tidy([*body((FORWARD, 10, 100), ("aten::mm", 10, 20)), wait])
    assert [e.kind for e in found if e.name == wait.name] == kinds
    pieces = {
        kind: sum(p.end - p.start for p in partition(found) if p.kind == kind)
        for kind in ("compute", "python")
    }
    assert pieces == {"compute": compute, "python": 90 - compute}


def test_over_nccl_the_kernel_is_the_transfer():
    raw = body(("c10d::allreduce_", 10, 20), ("c10d::recv_", 21, 22), ("aten::mm", 50, 60))
    raw += [RawEvent("nccl:all_reduce", 11, 19, MAIN, is_async=True)]
    raw += [RawEvent("ncclDevKernel_AllReduce_Sum_f32", 15, 40, -1, stream=20)]
    raw += [RawEvent("oneRankReduce", 41, 42, -1, stream=20), RawEvent("Memcpy DtoD", 43, 44, -1, stream=7)]
    found = tidy(raw)
    assert [e.name for e in found if e.kind == "transfer"] == [
        "ncclDevKernel_AllReduce_Sum_f32",
        "oneRankReduce",
    ]
    assert [e.end for e in found if e.name == "c10d::recv_"] == [22]


def test_nothing_recorded_gives_nothing():
    assert tidy([]) == []
    assert tidy(on(MAIN, ("aten::mm", 1, 2))) == []  # no mark: not a record's profile
