"""Diffs: aligned, blind to what differs between any two runs, and the first difference marked."""

from __future__ import annotations

import time

import pytest
import torch

from labkit import records, torch_compat
from labkit.records.nodes import nodes


def plain(x, w):
    y = x @ w
    return (y.relu() * 2).sum()


def with_one_more(x, w):
    y = x @ w
    y = y + 1
    return (y.relu() * 2).sum()


def with_another_number(x, w):
    y = x @ w
    return (y.relu() * 3).sum()


def crossed(x, w):
    return (x - w).relu() * x


def straight(x, w):
    return (w - x).relu() * x


def look(fn):
    return records.inspect(torch.compile(fn, backend="aot_eager"), torch.ones(4, 4), torch.ones(4, 4))


@pytest.mark.parametrize("stage", ["dynamo", "aot_forward", "guards", "bytecode_after", "decompiled"])
def test_the_same_function_compiled_twice_has_no_difference(stage):
    first = look(plain)
    torch_compat.dynamo_reset()
    found = records.diff(first, look(plain), stage)
    assert found.same and found.first is None and "agree on all" in found.said


@pytest.mark.parametrize("stage", ["dynamo", "aot_forward"])
def test_an_operation_more_is_one_line_and_what_follows_is_still_aligned(stage):
    found = records.diff(look(plain), look(with_one_more), stage)
    kinds = [row.kind for row in found.rows if row.kind != "same"]
    # the addition itself, and the operation that now takes its result
    assert kinds == ["right", "rewired"] and "add" in found.first.right or "+" in found.first.right
    assert found.names == ("plain", "with_one_more") and "which plain does not have" in found.said


def test_another_constant_is_the_first_difference():
    found = records.diff(look(plain), look(with_another_number), "aot_forward")
    assert found.different == 1
    assert found.first.left.endswith("2)") and found.first.right.endswith("3)")
    assert "→  - mul" in str(found) and "lines the same" in str(found)


def test_the_same_operations_on_other_inputs_are_a_difference():
    found = records.diff(look(crossed), look(straight), "aot_forward")
    assert found.first.kind == "rewired" and not found.same


def test_devices_groups_and_ids_are_no_difference():
    graph = """class G:
    def forward(self, x: "f32[4]{0}"):
        y: "f32[4]{0}" = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '{1}')
        return (y,)"""
    a = records.diff(graph.format("cuda:0", "0"), graph.format("cuda:1", "7"))
    assert a.same
    other = graph.replace("'sum'", "'max'").format("cuda:0", "0")
    assert records.diff(graph.format("cuda:0", "0"), other).different == 1


def test_a_ranks_own_gpu_in_inductors_code_and_in_guards_is_no_difference():
    code = """with torch.cuda._DeviceGuard({0}):
    torch.cuda.set_device({0})
    raw_stream{0} = get_raw_stream({0})
    stream{0} = get_raw_stream({0})
    kernel.run(buf0, 8, stream=stream{0})
    kernel.run(buf0, 8, stream=raw_stream{0})
    full([2], 1, device=device(type='cuda', index={0}))
    check_tensor(x, Tensor, device={0}, requires_grad=False)"""
    assert records.diff(code.format(0), code.format(1), "inductor").same
    assert records.diff("stream1.wait()", "stream2.wait()", "inductor").different  # names of the reader's own
    assert records.diff("f(index=1)", "f(index=2)", "inductor").different


def test_frames_of_several_functions_are_compared_in_order():
    def broken(x, w):
        y = x @ w
        print(end="")
        return y.relu()

    found = records.diff(look(broken), look(plain))
    assert not found.same and any("# frame" in row.left for row in found.rows)


def test_what_cannot_be_compared_says_so():
    eager = records.inspect(torch.compile(plain, backend="eager"), torch.ones(4, 4), torch.ones(4, 4))
    with pytest.raises(ValueError, match="without AOTAutograd"):
        records.diff(eager, eager, "aot_forward")
    with pytest.raises(ValueError, match="is no stage"):
        records.diff(eager, eager, "triton")
    with pytest.raises(ValueError, match="got a int"):
        records.diff(eager, 7)


def long_graph(n: int, odd: int = -1) -> str:
    lines = ['class G(torch.nn.Module):\n    def forward(self, x0: "f32[4]"):']
    for i in range(n):
        op = "mul" if i == odd else ("add", "sub", "relu")[i % 3]
        lines.append(f'        x{i + 1}: "f32[4]" = torch.ops.aten.{op}.Tensor(x{i}, 2);  x{i} = None')
    return "\n".join([*lines, f"        return (x{n},)"])


@pytest.mark.slow
def test_a_graph_of_5000_nodes_is_read_and_compared_in_bounded_time():
    began = time.process_time()
    assert len(nodes(long_graph(5000))) == 5002
    one = records.diff(long_graph(5000), long_graph(5000, odd=2500))
    assert one.different == 1 and "2502" in one.said
    two = records.diff(long_graph(5000), long_graph(4000, odd=100))
    assert not two.same and two.first.left_line == 102
    assert len(two._repr_html_()) > 0 and time.process_time() - began < 30
