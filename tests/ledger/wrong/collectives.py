"""Records in which a part of a fact is not true."""

NOT_ONE_PROCESS = {"is one process's": {"right": []}}
OTHER = {"said": {"gather": ["x is deprecated. Please use y"], "scatter": ["x is deprecated. Please use y"]}}
NO_WARNING = {
    "warn in eager that they are deprecated": {"said": {"gather": [], "scatter": []}},
    "name all_gather_single and reduce_scatter_single": OTHER,
}
WRONG = {
    "collectives.in-place-writes": {
        "its sum into its input": {"input": [1, 1]},
        "what it gathers into the tensor given for it": {"out": [0, 0, 0, 0]},
    },
    "collectives.work-handle": {
        "a Work with async_op=True": {"handle": False},
        "None without it, once the sum is there": {"value": 1.0},
    },
    "collectives.functional-returns-new": {
        "leaves its input as it was": {"left": ["all_reduce"]},
        "memory of its own": {"own": []},
    },
    "collectives.async-tensor": {
        "an AsyncCollectiveTensor before a late peer has joined": {"kind": "Tensor"},
        "using it waits": {"used": 1.0},
    },
    "collectives.memory-before-the-wait": {
        "does not hold the sum before the wait": {"before": 3.0},
        "holds it after": {"after": 1.0},
    },
    "collectives.wait-returns-the-same": {"the very tensor that it is given": {"same": [False, True]}},
    "collectives.ignored-wait": {"in eager": {"eager": [1.0] * 4}, "compiled": {"compiled": [1.0] * 4}},
    "collectives.group-src": {
        "both send rank 1's tensor, in eager and compiled": {"group_src": [1.0, 2.0]},
        "src=0 raises a ValueError": {"refused": ["", ""]},
    },
    "collectives.functional-src": {"in eager": {"values": [1.0, 2.0]}, "compiled": {"values": [2.0, 1.0]}},
    "collectives.group-arguments": {
        "a ProcessGroup, its name, a list of ranks, a DeviceMesh or a pair of mesh and dimension": {
            "right": ["ProcessGroup"]
        }
    },
    "collectives.functional-names-deprecated": NO_WARNING,
    "collectives.in-place-names-deprecated": NO_WARNING,
    "collectives.in-place-gradient-in-eager": {
        "the gradient of its own loss": {"wrong": {}},
        "no error": {"refused": ["sum"]},
    },
    "collectives.in-place-gradient-compiled": NOT_ONE_PROCESS,
    "collectives.gradients-are-right": {"in eager": {"eager": ["sum"]}, "compiled": {"compiled": []}},
    "collectives.gradient-of-an-average": NOT_ONE_PROCESS,
    "collectives.gradient-of-a-maximum": NOT_ONE_PROCESS,
    "collectives.no-gradient-of-a-product": {"raises a RuntimeError": {"refused": []}},
    "collectives.gradient-of-a-broadcast": {
        "the gradient of its own loss": {
            "wrong": {"broadcast": [[4.0, 5.0, 10.0, 8.0], [0.0, 0.0, 0.0, 0.0]]}
        },
        "no error": {"refused": ["broadcast"]},
    },
    "collectives.eager-cost": {"more than three times as long": {"ratio": 1.1, "low": 1.0, "high": 1.2}},
    "collectives.reinplaced": {"in the product's own buffer": {"buffers": 2}},
}
