"""The nodes of a printed graph are those of the graph; guards are parsed from the tree that Dynamo prints."""

from __future__ import annotations

import operator

import pytest
import torch
from oddrank.stages import guards, nodes
from torch import nn


class Everything(nn.Module):
    """One statement of each form in which torch prints a node."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        y += 1
        y[0] = 2
        a, b = y.split(2, 1)
        z = torch.where(-a > 0, ~(b > 0), a <= b)
        most = torch.cond(y.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (y,))
        return most, z, 1 / x[:, None], torch.nn.functional.gelu(x, approximate="tanh")


def captured(fn, *inputs):
    """What a backend is given: Dynamo's graph."""
    found = []

    def keep(gm, _):
        found.append(gm)
        return gm.forward

    torch.compile(fn, backend=keep, fullgraph=True)(*inputs)
    return found[0]


READS = ("getitem", "get")


@pytest.mark.parametrize("strides", [False, True])
def test_the_nodes_of_a_printed_graph_are_those_of_the_graph(strides):
    gm = captured(Everything(), torch.ones(4, 4))
    text = gm.print_readable(print_output=False, include_stride=strides, include_device=strides)
    found = nodes(text)
    mine = found[: 1 + next(i for i, node in enumerate(found) if node.kind == "output")]
    shown = {node.name: node for node in mine}
    for node, said in zip(gm.graph.nodes, mine, strict=True):
        if node.op == "placeholder":
            assert said.kind == "input" and said.name == node.target
            shown[node.name] = said
            continue
        assert said.name == node.name
        # `setitem` and the like are printed as a change of their first operand
        assert said.inputs == tuple(shown[one.name].name for one in node.all_input_nodes), node.format_node()
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            assert said.type.endswith(str(list(value.shape))) and bool(strides) == ("cpu" in said.shape)
        if node.op in ("get_attr", "output") or node.target is operator.getitem:
            assert said.kind == ("output" if node.op == "output" else "read")
            continue
        assert said.kind == "op" and (said.file, said.func) == (__file__, "forward")
        assert said.code in open(__file__, encoding="utf-8").read().splitlines()[said.line - 1]
    called = [node.short for node in mine if node.kind == "op"]
    assert called[:7] == ["linear", "+=", "setitem", "split", "neg", ">", ">"] and "gelu" in called
    inner = [node.short for node in found[len(mine) :] if node.kind == "op"]
    assert inner == ["sin", "cos"]
    (gelu,) = (node for node in mine if node.short == "gelu")
    assert gelu.constants.endswith("(_, approximate = 'tanh')")


def test_a_joint_graph_a_collective_and_lines_that_torch_does_not_know():
    reduce, wait, *rest = nodes("""class inner_f(torch.nn.Module):
    def forward(
        self,
        primals,
        tangents,
    ):
        sum: "f32[4][1]cuda:0"; tangents_1: "f32[4][1]cuda:0";  # PlainAOTInput(idx=0)
        sum, tangents_1, = fx_pytree.tree_flatten_spec([primals, tangents], self._in_spec)
        # recompute: block File: /home/ada/model.py:5 in step, code: dist.all_reduce(x)
        all_reduce: "f32[4][1]cuda:0" = torch.ops._c10d_functional.all_reduce.default(sum, 'sum', '3')
        # No stacktrace found for following nodes
        wait: "f32[4][1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(all_reduce);  all_reduce = None
        copy: "f32[4][1]cuda:0" = torch.ops.aten.copy_.default(sum, wait, wait = False)
        return pytree.tree_unflatten([
            copy,  # PlainAOTOutput(idx=0)
            None,  # None
            tangents_1,  # GradAOTOutput(grad_of=PlainAOTInput(idx=0))
        ], self._out_spec)
""")[2:]
    assert (reduce.kind, reduce.short, reduce.group, reduce.inputs) == (
        "collective",
        "all_reduce",
        "3",
        ("sum",),
    )
    assert (reduce.at, reduce.code, wait.kind, wait.at) == (
        "model.py:5 in step",
        "dist.all_reduce(x)",
        "wait",
        "",
    )
    assert [(node.short, node.inputs) for node in rest] == [
        ("copy_", ("sum", "wait")),
        ("output", ("copy", "tangents_1")),
    ]


TREE = """+- RootGuardManager
| +- GLOBAL_STATE: ___check_global_state()
| +- GuardManager: source=G['torch'], accessed_by=X
| | +- ID_MATCH: ___check_obj_id(G['torch'], 139872), type=<class 'module'>
| | +- GuardManager: source=G['torch'].sin, accessed_by=X
| | | +- LAMBDA_GUARD: G['torch'].sin is sin
| +- GuardManager: source=L['w'], accessed_by=X
| | +- LAMBDA_GUARD: G['__dtensor_spec_{}'] == L['w']  # y = x @ w  # model.py:2 in f
+- LAMBDA_GUARD: 2 <= L['x'].size()[0]  # y = x.sum(0)  # model.py:3 in f"""


def test_guards_have_what_they_protect_their_line_and_no_address():
    found = guards.parse(TREE.format(140688146698048))
    assert found == guards.parse(TREE.format(140688223587040)) != guards.parse(TREE.format("other"))
    rarely = {guard.protects for guard in found if guard.minor}
    assert rarely == {guards.GLOBAL, "G['torch']", "G['torch'].sin"}
    assert (
        str(found[-1]) == "LAMBDA_GUARD: 2 <= L['x'].size()[0]    # y = x.sum(0)"
    )  # at the root, and of L['x']
    assert guards.group(TREE).splitlines()[2:] == [
        "L['x']",
        f"    {found[-1]}",
        "rarely fail: torch's own state (1), G['torch'] (1), G['torch'].sin (1)",
    ]


def test_guards_of_a_real_compile_are_grouped_and_the_many_are_counted(look):
    def scaled(x, n):
        return x * n

    (one,) = look(scaled, torch.ones(3), 2, backend="eager")
    text = one.stage("guards")
    assert "L['n']\n    EQUALS_MATCH: L['n'] == 2" in text and "TENSOR_MATCH: float32 [3], stride [1]" in text
    assert "more that rarely fail" in text and "DYNAMIC" not in text and "HASATTR" not in text
    assert {"L['x']", "L['n']", guards.GLOBAL} <= {guard.protects for guard in one.guards}
