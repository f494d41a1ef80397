"""Records in which a part of a fact is not true."""

WRONG = {
    "tracing.in-place-in-one-graph": {
        "into one graph": {"one_graph": ["all_reduce"]},
        "as their functional forms": {"functional": []},
        "eager's results": {"same": ["all_gather"]},
    },
    "tracing.functional-in-one-graph": {
        "into one graph": {"one_graph": []},
        "an operator of torch.ops._c10d_functional": {"functional": ["sent"]},
        "its wait_tensor": {"waits": []},
        "eager's results": {"same": []},
    },
    "tracing.broadcast-and-barrier-break": {
        "break its graph": {"one_graph": ["barrier"]},
        "the result is eager's": {"same": ["barrier"]},
    },
    "tracing.handle-breaks": {"breaks the graph": {"one_graph": ["with_a_handle"]}},
    "tracing.handle-as-argument": {"raises torch._dynamo.exc.Unsupported": {"why": ""}},
    "tracing.traced-without-a-group": {
        "make_fx traces": {"shapes": {"nobody": [8], "nobody_gathers": [8]}},
        "AOTAutograd compiles": {"compiled": False},
        "the run raises an error": {"why": []},
    },
    "tracing.group-by-name": {
        "by its name, a string": {"by_name": ["reduced"]},
        "no other object": {"types": ["Node", "ProcessGroup"]},
    },
    "tracing.another-group-recompiles": {
        "compiles another graph": {"graphs": [1, 1, 1]},
        "the right sum": {"sums": [3.0, 3.0, 3.0]},
    },
    "tracing.same-code": {"the same code": {"same": False}},
}
