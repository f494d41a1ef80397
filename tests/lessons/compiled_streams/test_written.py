"""Inductor's code read as a stream program, against code whose races are known; and the recorded patterns."""

from __future__ import annotations

import json
import re

import pytest
import torch

from course.compiled_streams import inside, patterns
from course.compiled_streams.written import program_of, shortened, steps
from course.shared.streams import StreamError, simulate
from course.shared.streams.captured import in_a_child
from labkit import torch_compat
from tools import recapture

HEAD = """
def triton_poi_fused_sin_0(in_ptr0, out_ptr0, xnumel): ...

def call(args):
    default_stream = torch.cuda.current_stream()
    stream1 = get_external_object_by_index(2)
    with default_stream:
        buf0 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
        extern_kernels.mm(arg0_1, arg0_1, out=buf0)
        torch.ops.streams.record_event.default(1, 0)
    with stream1:
        torch.ops.streams.wait_event.default(1, 2)
        buf1 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
        triton_poi_fused_sin_0.run(buf0, buf1, 16, stream=raw_stream)
        torch.ops.streams.record_event.default(3, 2)
    with default_stream:
"""
WAIT = "        torch.ops.streams.wait_event.default(3, 0)\n"
REUSE = """        buf2 = buf0; del buf0  # reuse
        extern_kernels.mm(arg0_1, arg0_1, out=buf2)
"""
FREE = """        del buf0
        buf2 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
        extern_kernels.mm(arg0_1, arg0_1, out=buf2)
"""
FRESH = """        buf2 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
        extern_kernels.mm(arg0_1, arg0_1, out=buf2)
"""


def races(code):
    return [race.cause for race in simulate(program_of(code)).races]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (WAIT + REUSE, []),
        (REUSE + WAIT, ["wait too late"]),
        (WAIT + FREE, []),
        (FREE + WAIT, ["cross-stream free"]),
        (FRESH + WAIT, []),
    ],
)
def test_memory_that_another_stream_reads_is_used_again_only_after_the_wait(lines, found):
    assert races(HEAD + lines) == found


def test_a_view_keeps_the_memory_of_what_it_is_a_view_of():
    view = "        buf5 = reinterpret_tensor(buf0, (16,), (1,), 0)\n"
    assert races(HEAD + view + FREE + WAIT) == []
    assert races(
        HEAD + view + FREE.replace("buf2", "buf6").replace("del buf0", "del buf0\n        del buf5") + WAIT
    )


def test_a_kernel_before_its_wait_races():
    late = HEAD.replace("        torch.ops.streams.wait_event.default(1, 2)\n", "")
    assert races(late + WAIT) == ["missing wait"]


def test_what_is_no_code_is_refused():
    with pytest.raises(StreamError, match="no code of Inductor"):
        program_of("x = 1")


@pytest.mark.parametrize(
    "line",
    [
        "buf5 = torch.ops.aten.topk.default(buf0, 64, -1, True, True)",
        "torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '0')",
    ],
)
def test_a_reader_that_is_not_known_is_an_error_and_no_missing_race(line):
    with pytest.raises(StreamError, match="none that this reader knows: (buf5 = )?torch"):
        program_of(HEAD + f"        {line}\n" + REUSE + WAIT)


def test_a_log_is_read_as_its_code_and_code_without_a_kernel_is_refused():
    code = HEAD + REUSE + WAIT
    prefix = "V1129 07:00:00.000000 1 torch/_inductor/graph.py:2500] [0/0] [__output_code] "
    assert races("\n".join(prefix + line for line in code.splitlines())) == races(code) == ["wait too late"]
    with pytest.raises(StreamError, match="no kernel is launched"):
        program_of("def call(args):\n    return ()")


def test_the_shortened_code_says_the_same():
    code = json.loads(recapture.INDUCTOR.read_text())["streamed"]
    assert repr(program_of(code)) == repr(program_of(shortened(code)))
    assert sum("triton_" in line for line in steps(code)) == 4 and races(code) == []


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


def test_the_recorded_rows_are_what_the_recorded_code_says():
    kept = patterns.recorded()
    assert list(kept) == ["2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0"]
    assert kept["2.11.0"]["no_streams"] and not kept["2.11.0"]["rows"]
    for one in list(kept.values())[1:]:
        assert list(one["rows"]) == list(patterns.QUESTIONS)
        for question, name in {**patterns.CODE_ROWS, patterns.NO_REUSE: "no_reuse"}.items():
            assert (one["rows"][question][0] == "race") == bool(races(one["code"][name]))


# --- other functions than the lesson's, by this torch: Inductor fuses and orders code for a CPU as code for CUDA ---


def row_sums_beside(x, side):
    doubled = x * 2
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with side:
        ready.wait()
        sums = doubled.square().sum(-1, keepdim=True)
        done.record()
    own = x.sin()
    done.wait()
    return own * torch.rsqrt(sums), doubled, sums


def row_sums_joined(x, side):
    doubled, ready = x * 2, torch.Event()
    ready.record()
    with side:
        ready.wait()
        sums = doubled.square().sum(-1, keepdim=True)
    own = x.sin()
    torch.accelerator.current_stream().wait_stream(side)
    return own * torch.rsqrt(sums), doubled, sums


def row_sums_first(x, side):
    doubled = x * 2
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with side:
        ready.wait()
        sums = doubled.square().sum(-1, keepdim=True)
        done.record()
    done.wait()
    own = x.sin()
    return own * torch.rsqrt(sums), doubled, sums


def product_beside(x, side):
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with side:
        ready.wait()
        product = x @ x
        done.record()
    own = x.tanh()
    done.wait()
    return product - own, product


def code_of(fn, size):
    stream, texts = inside.pretend_streams(), []
    with torch.no_grad():
        torch.compile(fn, backend=torch_compat.inductor_code(texts), fullgraph=True)(
            torch.ones(size, size), stream(1)
        )
    return texts[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "size", "early_until"),
    [
        (row_sums_beside, 200, "2.14"),
        (product_beside, 48, "2.14"),
        (row_sums_joined, 48, ""),
        (row_sums_first, 200, ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_before_torch_2_14_work_of_its_own_is_fused_with_the_kernel_behind_the_wait(fn, size, early_until):
    if not torch_compat.has_stream_graphs():
        pytest.skip("this torch compiles no streams")
    if fn is row_sums_joined and torch.__version__ < "2.13":
        pytest.skip("torch 2.12 puts wait_stream before the kernels: a recorded row says so")
    found = simulate(program_of(in_a_child(code_of, fn, size, ship=False))).races
    numbers = [tuple(map(int, one.split(".")[:2])) for one in (torch.__version__, early_until or "0.0")]
    assert bool(found) == (numbers[0] < numbers[1]), [race.text for race in found]
