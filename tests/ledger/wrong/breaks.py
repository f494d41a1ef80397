"""Records in which a part of a fact about graph breaks is not true."""

SAME = {"ratio": 1.0, "low": 0.9, "high": 1.1}
FAST = {"ratio": 0.5, "low": 0.4, "high": 0.6}

WRONG = {
    "breaks.disabled-collective": {
        "n + 1 graphs": {"ran": {"1": 2, "4": 1}},
        "result is eager's": {"same": False},
    },
    "breaks.functional-collectives": {
        "is one graph": {"graphs": 2},
        "all its collectives": {"collectives": {"all_reduce": 0, "reduce_scatter": 3, "all_gather": 1}},
        "what one process computes": {"right": False},
    },
    "breaks.gather-along-another-dimension": {"stays in the graph": {"found": {"1": [2, 0], "2": [2, 0]}}},
    "breaks.break-in-a-callee": {"2(d + 1) graphs": {"ran": [2, 2, 2]}},
    "breaks.nested-graph-breaks": {
        "two graphs": {"ran": [2, 4, 6]},
        "result is eager's": {"same": False},
    },
    "breaks.break-in-a-loop": {"no graph": {"while": 1}, "runs it in eager": {"same": False}},
    "breaks.loop-over-blocks": {"2n graphs": {"ran": {"2": 4, "5": 1}}},
    "breaks.print-in-between": {
        "two graphs": {"graphs": 1},
        "one before it and one after it": {"calls": [["sin", "cos"]]},
        "in each call": {"lines": 1},
        "result is eager's": {"same": False},
    },
    "breaks.disable": {
        "runs in eager in each call": {"eager_runs": 1},
        "and so does what it calls": {"below": True},
        "result is eager's": {"same": False},
    },
    "breaks.logger": {
        "breaks its graph": {"method": 1},
        "nothing is logged at this level": {"enabled": True},
    },
    "breaks.side-effects-of-python": {
        "does not break its graph": {"ran": [1, 2, 2, 2, 2]},
        "happens all the same": {"done": False},
    },
    "breaks.append-to-a-list": {
        "compiled again in each call up to recompile_limit": {"global": [*range(1, 11)]},
        "guards the length of the list": {"reasons": ["len(kept) == 1", "tensor 'x' size mismatch"]},
    },
    "breaks.count-in-a-global": {
        "is compiled once": {"graphs": [1, 2, 2, 2, 2]},
        "counts right": {"count": 1},
    },
    "breaks.fullgraph": {
        "an error": {"kind": "", "error": ""},
        "the line of the first": {"lines": []},
    },
    "breaks.error-on-graph-break": {
        "a graph break in it is an error": {"error": "", "inside": 4},
        "one in its caller is not": {"caller": 0},
    },
    "breaks.unrolled": {
        "one graph": {"found": {"1": [1, 3], "2": [1, 6], "8": [8, 24]}},
        "n times the operations of one layer": {"found": {"1": [1, 3], "2": [1, 6], "8": [1, 11]}},
    },
    "breaks.compile-time": {"more than twice": SAME},
    "breaks.module-compile": {
        "Sequential": {"Sequential": {"Module.compile()": 3, "torch.compile()": 1}},
        "TransformerEncoderLayer": {"TransformerEncoderLayer": {"Module.compile()": 0, "torch.compile()": 1}},
        "Linear": {"Linear": {"Module.compile()": 0, "torch.compile()": 1}},
    },
    "breaks.part-of-a-model": {
        "one graph each": {"layer": {"graphs": 2, "operations": 3, "gradients": True}},
        "gradients are eager's": {"layer": {"graphs": 1, "operations": 3, "gradients": False}},
    },
    "breaks.cost": {"more than three times": {"whole": SAME}},
    "breaks.slower-than-eager": {"longer than in eager": {"eager": FAST}},
}
# HOLDS: records of facts that no version here answers with yes
HOLDS: dict[str, dict] = {}
