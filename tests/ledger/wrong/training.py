"""Records in which a part of a fact is not true."""

EARLY = ["backward", "gradient 3", "allreduce", "gradient 2", "gradient 1", "gradient 0", "allreduce"]
LATE = ["backward", "gradient 3", "gradient 2", "gradient 1", "gradient 0", "allreduce"]
IN_FORWARD = ["allreduce", "backward", "gradient 1", "allreduce", "gradient 0"]
IN_TURN = [f"{kind}{i}" for i in range(4) for kind in ("allgather ", "forward ")]
DEFAULT = [name.split()[0] if name.startswith("allgather") else name for name in IN_TURN]

WRONG = {
    "training.reductions-in-backward": {
        "DDP with several buckets": {"logs": {"DDP, many buckets": LATE, "FSDP2, many units": EARLY}},
        "FSDP2 with several units": {"logs": {"DDP, many buckets": EARLY, "FSDP2, many units": IN_FORWARD}},
    },
    "training.autograd-grad-reduces-nothing": {
        "starts no all_reduce": {"logs": {"DDP, many buckets": EARLY}},
    },
    "training.forward-prefetch": {
        "starts the next block's all-gather before the forward of a block": {"log": DEFAULT},
    },
    "training.ddp-optimizer-splits": {"into several graphs": {"backward": 1}},
    "training.compiled-ddp-gradients": {"the gradients of one process": {"error": 0.5}},
    "training.ddp-refuses-fullgraph": {"raises torch._dynamo.exc.Unsupported": {"raised": ""}},
    "training.fsdp2-hooks-break": {
        "raises torch._dynamo.exc.Unsupported": {"raised": ""},
    },
    "training.fsdp2-layers-compile-whole": {
        "each block compiles with fullgraph=True": {"forward": 0},
        "the gradients are those of one process": {"error": 0.5},
    },
    "training.fsdp2-parameters-are-dtensors": {"DTensors sharded on dimension 0": {"kinds": ["Parameter"]}},
    "training.ddp-sequential-compiles-nothing": {"compiles no graph and raises nothing": {"graphs": 1}},
    "training.fsdp2-sequential-compiles-nothing": {
        "compiles no graph with block.compile(), and nothing is raised": {"graphs": 2},
    },
    "training.fsdp2-sequential-fullgraph-raises": {"raises an error": {"raised": ""}},
    "training.compiled-autograd-whole": {
        "as one graph": {"backward": 3},
        "while it runs": {"before": 1},
    },
    "training.python-reducer-in-the-graph": {
        "one graph of backward with an all_reduce for each parameter": {"reduces": [4, 4]},
        "the gradients are those of one process": {"error": 0.5},
    },
    "training.compiled-autograd-refuses-the-reducer": {"raises a RuntimeError": {"raised": ""}},
    "training.python-reducer-keeps-buffers": {"are not broadcast": {"own": False}},
    "training.gathered-parameters-are-traced": {
        "compiles as one graph": {"graphs": [2, 2]},
        "an all-gather and a reduce-scatter for each parameter": {"all_gather": 0},
        "the gradients are those of one process": {"error": 0.5},
    },
    "training.no-double-backward": {"raises a RuntimeError": {"raised": ""}},
}

HOLDS = {}
