"""Records in which a part of a fact is not true."""

NOT_EQUAL = {"same": False}
WRONG = {
    "dtensor.distribute-tensor-cuts": {
        "its part for Shard(0)": {"shard": [8, 4]},
        "the whole tensor for Replicate()": {"replicate": [4, 4]},
        "the whole shape": NOT_EQUAL,
    },
    "dtensor.from-local-keeps": {
        "cuts nothing": {"local": [4, 4]},
        "twice as many rows": {"global": [8, 4]},
    },
    "dtensor.from-local-checks-nothing": {"keeps replicas that differ": {"ranks": [[0, 0], [0, 0]]}},
    "dtensor.zeros-of-the-shard": {
        "torch.distributed.tensor.zeros makes each rank's shard": {"local": [8, 4]},
        "torch.zeros takes no device_mesh": {"said": ""},
    },
    "dtensor.inner-split-is-partial": {
        "is Partial": {"placement": "R"},
        "one all_reduce in an operation that needs its value": {"later": []},
        "the right result": NOT_EQUAL,
    },
    "dtensor.column-product": {
        "split by columns": {"columns": False},
        "without a collective": {"called": ["all_reduce"]},
        "the right result": NOT_EQUAL,
    },
    "dtensor.inserts-a-gather": {
        "calls one all-gather": {"called": []},
        "the result is one process's": NOT_EQUAL,
    },
    "dtensor.sum-is-partial": {
        "is Partial": {"placement": "R"},
        "gathers nothing": {"called": ["all_gather_into_tensor"]},
    },
    "dtensor.view-gathers": {
        "gathers it once": {"called": []},
        "the result is one process's": NOT_EQUAL,
    },
    "dtensor.view-stays-split": {
        "stays split, without a collective": {"called": ["all_gather_into_tensor"]},
        "the result is one process's": NOT_EQUAL,
    },
    "dtensor.backward-of-a-gather": {
        "one all-gather": {"forward": []},
        "no collective for a Replicate gradient": {"replicate": ["reduce_scatter_tensor"]},
        "one reduce-scatter for a Partial one": {"partial": []},
    },
    "dtensor.grid-product": {
        "[Shard(0), Partial()]": {"wanted": False},
        "without a collective": {"called": ["all_gather_into_tensor"]},
        "the right result": NOT_EQUAL,
    },
    "dtensor.not-in-torch-dispatch": {
        "does not call DTensor.__torch_dispatch__": {"met": ["aten.add.Tensor"]}
    },
    "dtensor.compiled-into-collectives": {
        "compile as one graph": {"why": "Unsupported: print"},
        "functional collectives in the place of DTensors": {"collectives": []},
        "the right result": NOT_EQUAL,
    },
    "dtensor.eager-overhead": {"more than twice as long": {"ratio": 1.0, "low": 0.9, "high": 1.1}},
    "dtensor.compiled-overhead": {"more than 1.2 times as long": {"ratio": 1.0, "low": 0.9, "high": 1.1}},
    "dtensor.uneven-rows-that-change": {"ranks get other numbers of rows": {"rows": [5, 5]}},
    "dtensor.operators-without-a-rule": {"raises NotImplementedError": {"said": ""}},
    "dtensor.async-tp-fuses": {
        "fused_all_gather_matmul": {"after": ["fused_matmul_reduce_scatter"]},
        "fused_matmul_reduce_scatter": {"after": ["fused_all_gather_matmul"]},
    },
}
