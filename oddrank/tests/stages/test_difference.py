"""A diff is aligned, blind to what differs between any two runs, and marks the first difference; so is a digest."""

from __future__ import annotations

import pytest
from oddrank.stages import diff, digest

from oddrank import torch_names


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


def test_the_same_function_compiled_twice_has_no_difference_in_any_stage(look):
    (one,) = look(plain)
    torch_names.dynamo_reset()
    (other,) = look(plain)
    for stage in one.texts:
        found = diff(one, other, stage)
        assert found.same and found.first is None and "agree on all" in str(found), stage
        assert digest(one, stage) == digest(other, stage) != "", stage


@pytest.mark.parametrize("stage", ["dynamo", "aot_forward"])
@pytest.mark.parametrize(
    "a, b, kinds",
    [
        # the addition itself, and the operation that now takes its result
        (plain, with_one_more, ["right", "rewired"]),
        (with_one_more, plain, ["left", "rewired"]),
        (plain, with_another_number, ["changed"]),
        (crossed, straight, ["rewired"]),
    ],
)
def test_only_the_operations_that_differ_are_shown_as_different(look, stage, a, b, kinds):
    (one,), (other,) = look(a), look(b)
    found = diff(one, other, stage)
    rows = [row for row in found.rows if row.kind != "same"]
    # a graph that saves other values for the backward returns them as well
    assert [row.kind for row in rows if not row.left.startswith("return")] == kinds
    assert found.first == rows[0] and found.names == (a.__name__, b.__name__)
    text, page = str(found), found._repr_html_()
    assert (
        text.count("→") == page.count("▶") == 1 and (rows[0].left or rows[0].right) in text.partition("→")[2]
    )
    assert digest(one, stage) != digest(other, stage)


GRAPH = """class G:
    def forward(self, x: "f32[4]{0}"):
        y: "f32[4]{0}" = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '{1}')
        return (y,)"""
CODE = """# AOT ID: ['{0}_inference']
with torch.cuda._DeviceGuard({0}):
    torch.cuda.set_device({0})
    raw_stream{0} = get_raw_stream({0})
    kernel.run(buf0, 8, stream=stream{0})
    full([2], 1, device=device(type='cuda', index={0}))  # of rank {0}
    check_tensor(x, Tensor, device={0}, requires_grad=False)
    torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '{0}')"""


@pytest.mark.parametrize(
    "stage, a, b, same",
    [
        ("dynamo", GRAPH.format("cuda:0", "0"), GRAPH.format("cuda:1", "7"), True),
        ("dynamo", GRAPH, GRAPH.replace("'sum'", "'max'"), False),
        ("dynamo", GRAPH, GRAPH.replace("f32", "f16"), False),
        ("inductor", CODE.format(0), CODE.format(1), True),
        ("inductor", CODE, CODE.replace("8", "16"), False),
        ("inductor", "stream1.wait()", "stream2.wait()", False),  # names of the reader's own
        ("inductor", "f(index=1)", "f(index=2)", False),
        ("decompiled", "__resume_at_4_1(tmp_3)", "__resume_at_4_2(tmp_5)", True),
        ("decompiled", "__resume_at_4_1(x)", "__resume_at_6_1(x)", False),
    ],
)
def test_devices_groups_ids_and_comments_are_no_difference(stage, a, b, same):
    assert diff(a, b, stage).same is same
    assert (digest(a, stage) == digest(b, stage)) is same


def test_what_cannot_be_compared_says_so(look):
    (one,) = look(plain, backend="eager")
    with pytest.raises(ValueError, match="without AOTAutograd"):
        diff(one, one, "aot_forward")
    with pytest.raises(ValueError, match="is no stage"):
        diff(one, one, "triton")
    with pytest.raises(ValueError, match="got a int"):
        diff(one, 7)
    assert digest("", "dynamo") == ""


def long_graph(n, odd=-1):
    lines = ['class G(torch.nn.Module):\n    def forward(self, x0: "f32[4]"):']
    for i in range(n):
        op = "mul" if i == odd else ("add", "sub", "relu")[i % 3]
        lines.append(f'        x{i + 1}: "f32[4]" = torch.ops.aten.{op}.Tensor(x{i}, 2);  x{i} = None')
    return "\n".join([*lines, f"        return (x{n},)"])


def test_a_long_graph_is_aligned_as_far_as_it_can_be_and_shown_in_part(monkeypatch):
    found = diff(long_graph(3000), long_graph(3000, odd=1500))
    assert found.different == 1 and found.first.left_line == 1502 and len(str(found).splitlines()) < 15
    monkeypatch.setattr("oddrank.stages.difference.MOST", 10)
    found = diff("same\n" + "a\nb\nc\nd\n" + "end", "same\n" + "b\nc\nd\ne\n" + "end")
    assert "too long to be aligned" in str(found) and [row.kind for row in found.rows] == [
        "same",
        *["changed"] * 4,
        "same",
    ]
