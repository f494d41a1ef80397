"""The drawn graph: lines folded into boxes, repetition drawn once, collectives marked, bounded whatever the size."""

from __future__ import annotations

import pytest
from oddrank.record import Compile
from oddrank.stages import Frame, nodes

from course.reading.drawing import draw_graph, fold

REDUCE = "torch.ops._c10d_functional.all_reduce.default"
WAIT = "torch.ops._c10d_functional.wait_tensor.default"


def model(blocks: int, extra: str = "") -> str:
    """A graph of blocks with two lines and one collective each."""
    lines = ['class G(torch.nn.Module):\n    def forward(self, x: "f32[4]", w: "f32[4]"):']
    now = "x"
    for i in range(blocks):
        lines += [
            "        # File: model.py:3 in block, code: h = act(x * w)",
            f'        mul_{i}: "f32[4]" = torch.ops.aten.mul.Tensor({now}, w)',
            f'        relu_{i}: "f32[4]" = torch.ops.aten.relu.default(mul_{i});  mul_{i} = None',
            "        # File: torch/distributed/_functional_collectives.py:9 in all_reduce, code: tensor = f(",
            f"        all_reduce_{i}: \"f32[4]\" = {REDUCE}(relu_{i}, 'sum', '0')",
            f'        wait_{i}: "f32[4]" = {WAIT}(all_reduce_{i});  all_reduce_{i} = None',
            "        # File: model.py:5 in block, code: return x + h",
            f'        add_{i}: "f32[4]" = torch.ops.aten.add.Tensor({now}, wait_{i});  wait_{i} = None',
        ]
        now = f"add_{i}"
    return "\n".join([*lines, extra, f"        return ({now},)"])


def test_lines_collectives_and_their_waits_are_boxes():
    folded = fold(nodes(model(1)))
    assert [(box.kind, box.title, box.below) for box in folded.boxes] == [
        ("input", "2 inputs", "x, w"),
        ("op", "mul, relu", "h = act(x * w)"),
        ("collective", "all_reduce + wait", "f32[4]"),
        ("op", "add", "return x + h"),
        ("output", "output", ""),
    ]
    assert folded.edges == ((0, 1), (0, 3), (1, 2), (2, 3), (3, 4))


def test_a_model_of_many_blocks_is_one_block_with_how_often():
    blocks = 120
    folded = fold(nodes(model(blocks)))
    assert [box.times for box in folded.boxes] == [1, blocks, blocks, blocks, 1]
    assert dict(folded.collectives) == {"all_reduce": blocks} and folded.operations == 5 * blocks
    figure = draw_graph(model(blocks), label="host only")
    assert figure.get_figheight() < 6
    drawn = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert f"×{blocks}" in drawn and "⇄ all_reduce + wait" in drawn
    assert f"{blocks} all_reduce" in figure.summary and figure.summary.endswith("[host only]")


def test_a_graph_without_repetition_keeps_its_ends_and_counts_the_middle():
    lines = ['class G(torch.nn.Module):\n    def forward(self, x0: "f32[4]"):']
    for i in range(300):
        lines.append(f"        # File: model.py:{i} in f, code: line {i}")
        op = REDUCE if i % 2 else f"torch.ops.aten.op{i}.default"
        lines.append(f'        x{i + 1}: "f32[{i}]" = {op}(x{i});  x{i} = None')
    text = "\n".join([*lines, "        return (x300,)"])
    folded = fold(nodes(text), most=20)
    assert len(folded.boxes) == 20 and folded.boxes[-1].kind == "output"
    (more,) = [box for box in folded.boxes if box.kind == "more"]
    assert "more operations" in more.title and "collectives among them" in more.below
    shown = sum(box.count for box in folded.boxes if box.kind not in ("input", "output"))
    assert shown == 300


def test_nothing_to_draw_and_what_is_no_graph():
    assert "nothing in it" in " ".join(t.get_text() for t in draw_graph("").texts)
    with pytest.raises(ValueError, match="got a int"):
        draw_graph(7)
    frame = Frame(Compile(0, "0/0", func="f"), missing={"dynamo": "no operation on tensors was captured"})
    with pytest.raises(ValueError, match="no operation on tensors"):
        draw_graph(frame)


def test_a_text_that_is_not_quite_python_is_read_line_by_line():
    text = model(2).replace("class G(torch.nn.Module):", "class <lambda> of g(torch.nn.Module) {")
    assert "2 all_reduce" in draw_graph(text).summary


def test_no_line_crosses_a_box_and_no_two_lanes_overlap():
    lines = ['class G(torch.nn.Module):\n    def forward(self, x0: "f32[4]"):']
    for i in range(12):  # each operation also uses what came three lines earlier
        lines.append(f"        # File: model.py:{i} in f, code: line {i}")
        other = f"x{max(0, i - 3)}"
        lines.append(f'        x{i + 1}: "f32[4]" = torch.ops.aten.op{i}.default(x{i}, {other})')
    text = "\n".join([*lines, "        return (x12,)"])
    (axes,) = [axes for axes in draw_graph(text).axes if axes.get_label() != "legend"]
    boxes = [patch.get_bbox() for patch in axes.patches]
    lanes = []
    for line in axes.lines:
        xs, ys = line.get_data()
        for x0, x1, y0, y1 in zip(xs[:-1], xs[1:], ys[:-1], ys[1:], strict=True):
            assert not any(
                box.x0 < (x0 + x1) / 2 < box.x1 and box.y0 < (y0 + y1) / 2 < box.y1 for box in boxes
            )
            if x0 == x1 and x0 > boxes[0].x1:
                lanes.append((x0, y0, y1))
    assert len(lanes) == 9
    for i, (x, top, bottom) in enumerate(lanes):
        assert not any(x == other and top < below and above < bottom for other, above, below in lanes[:i])
