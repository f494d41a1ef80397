"""Records in which a part of a fact is not true."""

AT_ONCE = ["mm", "all_reduce", "wait", "mm", "mm", "mm"]
LATER = ["mm", "all_reduce", "mm", "mm", "mm", "wait"]
LATE = {"functional": [0.0, 0.0, 0.0], "functional_used": [0.2, 0.21, 0.2]}
ONE_BY_ONE = ["gather", "wait", "mm"] * 3
TWO_FIRST = ["gather", "gather", "wait", "mm", "wait", "mm", "gather", "wait", "mm"]
KERNEL = {"stream": 7, "start": 0.0, "end": 20.0}
NCCL = {"stream": 17, "start": 20.1, "end": 20.5}
AFTER = {"stream": 7, "start": 20.6, "end": 20.7}
QUEUED = {"host_ms": 3.0, "threads": ["pt_nccl_watchdg"], "fill": KERNEL, "collective": NCCL, "after": AFTER}


def ranks(**changed):
    return {"ranks": [QUEUED, {**QUEUED, **changed}]}


BESIDE = {
    "communication": [[5.0, 8.0], [10.0, 13.0], [15.0, 18.0], [20.0, 23.0]],
    "forward": [[0.0, 5.0], [5.0, 10.0], [10.0, 15.0], [15.0, 20.0]],
}
IN_TURN = {
    "communication": [[5.0, 8.0], [13.0, 16.0], [21.0, 24.0], [29.0, 32.0]],
    "forward": [[0.0, 5.0], [8.0, 13.0], [16.0, 21.0], [24.0, 29.0]],
}
OTHER_MEMORY = {"same_memory": False, "read": 7.0}
READ_RIGHT, READ_WRONG = {"same_memory": True, "read": 1.0}, {"same_memory": True, "read": 7.0}

WRONG = {
    "overlap.products-before-the-wait": {
        "between a functional all_reduce and its wait": {"orders": {"returned": LATER, "used": AT_ONCE}},
    },
    "overlap.simple-overlap-off": {
        "without a matrix product between them": {"orders": {"returned": AT_ONCE, "used": LATER}},
    },
    "overlap.reorder-for-locality": {"past independent matrix products": {"orders": {"used": AT_ONCE}}},
    "overlap.compiled-work-before-a-late-peer": {
        "starts before a late peer has joined": {"starts_s": LATE},
    },
    "overlap.async-op-before-a-late-peer": {
        "starts before a late peer has joined": {"starts_s": {"asynchronous": [0.2, 0.2, 0.2]}},
    },
    "overlap.no-stream-operators": {"no stream operator": {"operators": ["streams.record_event"]}},
    "overlap.reorder-passes": {
        "starts all gathers before the first matrix product": {"orders": {"passes": TWO_FIRST}},
    },
    "overlap.overlap-scheduling": {
        "starts the gather of the next weight before each matrix product": {
            "orders": {"scheduling": TWO_FIRST}
        },
    },
    "overlap.switch-alone": {
        "leaves the order": {"orders": {"default": ONE_BY_ONE, "switch alone": TWO_FIRST}},
    },
    "overlap.bucket-all-gathers": {
        "into one collective": {"gathers": 2},
        "with the same result": {"right": False},
    },
    "overlap.events-order-streams": {
        "a race without an event": {"without": []},
        "none where it waits for an event": {"with": ["UnsynchronizedAccessError"]},
    },
    "overlap.kernels-run-together": {"at the same time": {"together_ms": 0.0}},
    "overlap.copy-beside-a-kernel": {"runs beside a kernel": {"both": 29.0}},
    "overlap.freed-memory-is-reused": {
        "goes to the next tensor of its own stream": {"not_synchronized": OTHER_MEMORY},
        "the reader gets wrong values": {"not_synchronized": READ_RIGHT},
        "unless the host synchronizes that stream first": {"synchronized": READ_WRONG},
    },
    "overlap.events-across-devices": {"waits for an event of another GPU": {"after_ms": 0.1}},
    "overlap.microbatch-beside-the-next": {
        "runs beside the next microbatch's forward": {"ranks": [BESIDE, IN_TURN]},
    },
    "overlap.nccl-own-stream": {
        "another CUDA stream than the current one": ranks(collective={**NCCL, "stream": 7}),
    },
    "overlap.nccl-synchronous-on-the-current-stream": {"on the current CUDA stream": ranks()},
    "overlap.nccl-host-goes-on": {"without blocking the host": ranks(host_ms=21.0)},
    "overlap.nccl-waits-for-the-data": {
        "starts after the kernels queued on the current stream": ranks(
            collective={**NCCL, "start": 0.1, "end": 0.5}
        ),
    },
    "overlap.nccl-next-kernel-waits": {
        "starts after the collective has ended": ranks(after={**AFTER, "start": 20.2}),
    },
    "overlap.nccl-threads": {"threads": {"ranks": [{"threads": ["python", "pt_gloo_runloop"]}]}},
}

HOLDS = {
    "overlap.kernels-run-together": {"together_ms": 19.6, "each_ms": 20.0},
    "overlap.copy-beside-a-kernel": {"kernel": 20.0, "copy": 10.0, "both": 20.1},
    "overlap.freed-memory-is-reused": {"synchronized": READ_RIGHT, "not_synchronized": READ_WRONG},
    "overlap.events-across-devices": {"after_ms": 100.2, "busy_ms": 100.3},
    "overlap.microbatch-beside-the-next": {"ranks": [BESIDE, BESIDE]},
    "overlap.nccl-own-stream": ranks(),
    "overlap.nccl-synchronous-on-the-current-stream": {
        "ranks": [{**QUEUED, "collective": {**NCCL, "stream": 7}}]
    },
    "overlap.nccl-host-goes-on": ranks(),
    "overlap.nccl-waits-for-the-data": ranks(),
    "overlap.nccl-next-kernel-waits": ranks(),
    "overlap.nccl-threads": ranks(),
}
