"""Records in which a part of a fact is not true, for parts that are true in every run that was recorded."""

FAILED = {
    "error": "it does not compile",
    "graphs": 0,
    "dynamo": [],
    "forward": [],
    "backward": [],
    "ran": {},
    "meta": [],
}
RAISED = {"gave": None, "ended": "RuntimeError: x", "said": "x"}
CALLED = {"ended": "", "changed": False, "values": [0.0, 0.0], "seconds": 0.0}
ID = {
    "bytes": 128,
    "secret": "0102030405060708",
    "family": "AF_INET",
    "of_this_host": True,
    "key": "0//1//cuda//0",
}
TWO = [ID, {**ID, "secret": "1112131415161718", "key": "0//2//cuda//0"}]
INIT = [
    f"ncclCommInitRank comm 0x{name} rank 0 nranks 2 cudaDev 0 busId 1 commId 0x1 - Init COMPLETE"
    for name in "ab"
]
CHANNEL = ["Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Channel 01/0 : 1[1] -> 0[0] via P2P/CUMEM"]
DESTROYED = ["comm 0xa rank 0 nranks 2 cudaDev 0 busId 1 - Destroy COMPLETE"]


def ranks(
    identity=TWO, late=({"0": 0}, {"1": 1}), before=(), after=(*INIT, *CHANNEL), ended=DESTROYED, right=True
) -> list[dict]:
    log = {"before": [*before], "after": [*before, *after], "destroyed": [*before, *after, *ended]}
    return [{"late": one, "right": right, "log": log, "identity": [*identity]} for one in late]


def over(**parts) -> dict:
    return {"ranks": ranks(**parts)}


WRONG = {
    "breaks.disabled-collective": {"result is eager's": {"same": False}},
    "breaks.functional-collectives": {"what one process computes": {"right": False}},
    "breaks.nested-graph-breaks": {"result is eager's": {"same": False}},
    "breaks.one-breaks-all": {
        "one graph where none does": {"none": 5},
        "in a submodule": {"last, by a flag": 6},
    },
    "breaks.print-in-between": {"result is eager's": {"same": False}},
    "breaks.disable": {"runs in eager in each call": {"eager_runs": 1}, "result is eager's": {"same": False}},
    "breaks.logger": {"nothing is logged at this level": {"enabled": True}},
    "breaks.side-effects-of-python": {"happens all the same": {"done": False}},
    "breaks.count-in-a-global": {"counts right": {"count": 1}},
    "breaks.error-on-graph-break": {"one in its caller is not": {"caller": 0}},
    "breaks.unrolled": {"one graph": {"found": {"1": [1, 3], "2": [1, 6], "8": [8, 24]}}},
    "breaks.part-of-a-model": {
        "gradients are eager's": {"layer": {"graphs": 1, "operations": 3, "gradients": False}}
    },
    "caches.warmup-fits": {"compiles nothing": {"as_served": [0, 1]}},
    "caches.ranks-compile-what-they-see": {"without an error": {"right": [True, False]}},
    "caches.break-on-one-rank": {
        "all_gather_object": {"everyone": [[[1, 0], [2, 1]], [[1, 0], [1, 0]]]},
        "right results": {"right": [True, False]},
    },
    "caches.remote-cache-is-shared": {"the process that compiles first": {"lowered": [0, 0]}},
    "caches.package-runs-elsewhere": {"in another process": {"right": [True, False]}},
    "caches.aot-compile-runs-elsewhere": {"in another process": {"right": [True, False]}},
    "caches.precompile-runs-elsewhere": {"in another process": {"right": [True, False]}},
    "caches.regions-leave-the-rest": {"right results": {"right": [True, False]}},
    "collectives.memory-before-the-wait": {"does not hold the sum before the wait": {"before": 3.0}},
    "collectives.in-place-gradient-in-eager": {"no error": {"refused": ["sum"]}},
    "collectives.gradient-of-a-broadcast": {"no error": {"refused": ["broadcast"]}},
    "dtensor.distribute-tensor-cuts": {"its part for Shard(0)": {"shard": [8, 4]}},
    "dtensor.zeros-of-the-shard": {
        "torch.distributed.tensor.zeros makes each rank's shard": {"local": [8, 4]}
    },
    "dtensor.inner-split-is-partial": {"the right result": {"same": False}},
    "dtensor.column-product": {
        "without a collective": {"called": ["all_reduce"]},
        "the right result": {"same": False},
    },
    "dtensor.inserts-a-gather": {"the result is one process's": {"same": False}},
    "dtensor.grid-product": {
        "without a collective": {"called": ["all_gather_into_tensor"]},
        "the right result": {"same": False},
    },
    "dtensor.async-tp-fuses": {"fused_all_gather_matmul": {"after": ["fused_matmul_reduce_scatter"]}},
    "groups.only-rank-zero-waits": {"the other ranks write their gloo addresses": {"early": [1]}},
    "groups.rank-zero-serves": {
        "the others connect": {"connected": [True, True, False, True]},
        "RANK and WORLD_SIZE": {"world": [[0, 4], [1, 4], [2, 4], [3, 3]]},
    },
    "groups.rank-zero-counts": {"DistStoreError": {"said": ["", "", ""]}},
    "groups.server-is-a-thread": {"however many clients connect": {"with_clients": 5}},
    "groups.values-in-memory-of-rank-zero": {"after the client that set it has gone": {"kept": 0}},
    "groups.client-waits-for-server": {"until the server listens": {"works": False}},
    "groups.gloo-writes-addresses": {
        "the default group": {"default": {}},
        "its host's name": {
            "new": {
                "0": {"named": False, "address": "127.0.0.1:1", "listens": True},
                "1": {"named": False, "address": "127.0.0.1:1", "listens": True},
            }
        },
        "the address at which it listens": {
            "new": {
                "0": {"named": True, "address": "127.0.0.1:1", "listens": False},
                "1": {"named": True, "address": "127.0.0.1:1", "listens": False},
            }
        },
    },
    "groups.no-mpi": {"come without MPI": {"mpi": True}},
    "groups.mesh-tensor-on-cpu": {"of a 'cuda' mesh": {"of_cuda": "cuda:0"}},
    "guards.first-compile-specializes": {"result is eager's": {"size": {"graphs": [1, 1, 2], "same": False}}},
    "guards.recompiles-are-logged": {
        "a call for which all guards hold compiles and prints nothing": {
            "same": {"graphs": 1, "failed": [], "trees": 0, "of_x": 0, "of_n": 0, "with_code": 0}
        }
    },
    "guards.second-size-is-a-symbol": {
        "on each rank": {"graphs": [[1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 2, 2, 2, 2]]}
    },
    "guards.int-argument": {"another value compiles a second graph": {"graphs": [1, 1, 1, 2, 2, 2, 2]}},
    "guards.float-argument": {"another value compiles a second graph": {"graphs": [1, 1, 1, 2, 2, 2, 2]}},
    "guards.runs-in-python-at-the-limit": {
        "without an error": {"error": "FailOnRecompileLimitHit"},
        "graphs that exist are still used": {"ran": [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]},
    },
    "guards.static-sources": {
        "while dimension 1 becomes a symbol": {
            "symbols": [[[False, False]], [[False, False]], [[False, False]], [[False, False]]]
        }
    },
    "guards.one-rank-recompiles": {"that rank compiles again": {"graphs": [[1, 1, 1], [1, 1, 1]]}},
    "nccl.comm-init-rank": {
        "calls ncclCommInitRank": over(
            after=[line.replace("ncclCommInitRank", "ncclCommSplit") for line in INIT]
        ),
        "number of ranks": over(after=[*(line.replace("nranks 2", "nranks 1") for line in INIT), *CHANNEL]),
        "its channels follow": over(after=INIT),
    },
    "nccl.over-nvlink": {
        "via P2P": over(after=[*INIT, *(line.replace("P2P/CUMEM", "SHM") for line in CHANNEL)])
    },
    "nccl.barrier-is-an-all-reduce": {"an all-reduce": {"new": [["nccl:barrier", [[1]], ["Float"]]]}},
    "one_rank.uneven-shards-one-graph": {
        "the result is right on each": {
            "ranks": [
                {"failed": "", "coordinate": True, "group": "an input", "starts": [0], "right": True},
                {"failed": "", "coordinate": True, "group": "an input", "starts": [0], "right": True},
                {"failed": "", "coordinate": True, "group": "an input", "starts": [0], "right": True},
                {"failed": "", "coordinate": True, "group": "an input", "starts": [0], "right": False},
            ]
        }
    },
    "one_rank.torchcomms-is-off": {"is off by default": {"default": True}},
    "overlap.bucket-all-gathers": {"with the same result": {"right": False}},
    "overlap.events-order-streams": {"a race without an event": {"without": []}},
    "overlap.freed-memory-is-reused": {
        "goes to the next tensor of its own stream": {
            "not_synchronized": {"same_memory": False, "read": 7.0}
        },
        "unless the host synchronizes that stream first": {
            "synchronized": {"same_memory": True, "read": 7.0}
        },
    },
    "overlap.events-across-devices": {"waits for an event of another GPU": {"after_ms": 0.1}},
    "overlap.microbatch-beside-the-next": {
        "runs beside the next microbatch's forward": {
            "ranks": [
                {
                    "communication": [[5.0, 8.0], [10.0, 13.0], [15.0, 18.0], [20.0, 23.0]],
                    "forward": [[0.0, 5.0], [5.0, 10.0], [10.0, 15.0], [15.0, 20.0]],
                },
                {
                    "communication": [[5.0, 8.0], [13.0, 16.0], [21.0, 24.0], [29.0, 32.0]],
                    "forward": [[0.0, 5.0], [8.0, 13.0], [16.0, 21.0], [24.0, 29.0]],
                },
            ]
        }
    },
    "reading.functional-graph": {
        "only functional operations": {"in_place": ["aten.add_.Tensor", "aten.copy_.default"]}
    },
    "reading.caller-sees-the-change": {"result is eager's": {"same": False}},
    "reading.order-of-a-sum": {"sums of whole numbers are equal": {"whole": 2}},
    "reading.stage-by-stage": {
        "a branch that tracing takes with eager": {"takes_a_branch": {"eager": 0, "aot_eager": 8192}}
    },
    "stream_graphs.other-streams-same-graph": {
        "get_external_object_by_index": {
            "it": {"graphs": 2, "looked_up": [[11], [11]], "by": ["get_user_obj_by_index"], "objects": 1}
        },
        "looks the new ones up": {
            "it": {"graphs": 2, "looked_up": [[11], [11]], "by": ["get_user_obj_by_index"], "objects": 1}
        },
    },
    "stream_graphs.event-operators": {"record_event": {"it": FAILED}},
    "stream_graphs.stream-in-meta": {"outside of all": {"it": FAILED}},
    "stream_graphs.record-after-a-change-is-an-error": {"the change alone compiles": {"again": FAILED}},
    "stream_graphs.written-after-the-record": {"compiles": {"it": FAILED}},
    "symmetry.one-rank-does-not-show": {
        "is right in a job of one rank with either flag": {"alone": [{"gave": [4.0, 4.0]}, {"gave": None}]}
    },
    "symmetry.guard-collectives": {
        "with the right sum": {"ranks": [{"graphs": 2, "value": 4.0}, {"graphs": 2, "value": 5.0}]}
    },
    "symmetry.swapped-tensors-mix": {"without an error": {"order of tensors": {"ranks": [RAISED, RAISED]}}},
    "symmetry.other-operation-is-silent": {
        "ends without an error": {"op": {"ranks": [{"gave": [2.0, 4.0, 3.0, 4.0], "ended": ""}, RAISED]}}
    },
    "symmetry.other-metadata-is-silent": {"without an error": {"dtype": {"ranks": [RAISED, RAISED]}}},
    "symmetry.outsider-is-ignored": {
        "within a second": {
            "broadcast": [
                {"ended": "", "changed": False, "values": [0.0, 0.0], "seconds": 1.5},
                CALLED,
                CALLED,
            ]
        },
        "get the right values": {"all_reduce": [CALLED, CALLED, CALLED]},
    },
    "tensor_parallel.in-place-differs-compiled": {
        "those of one process in eager": {
            "eager": {
                "first up": ["2 x right"],
                "first down": ["2 x right"],
                "first norm": ["2 x right"],
                "last up": ["2 x right"],
                "last down": ["2 x right"],
                "last norm": ["2 x right"],
            }
        }
    },
    "tracing.in-place-in-one-graph": {"eager's results": {"same": ["all_gather"]}},
    "tracing.functional-in-one-graph": {"eager's results": {"same": []}},
    "tracing.broadcast-and-barrier-break": {"the result is eager's": {"same": ["barrier"]}},
    "tracing.traced-without-a-group": {
        "AOTAutograd compiles": {"compiled": False},
        "the run raises an error": {"why": []},
    },
    "training.compiled-autograd-whole": {"while it runs": {"before": 1}},
    "training.python-reducer-in-the-graph": {"the gradients are those of one process": {"error": 0.5}},
    "training.gathered-parameters-are-traced": {"the gradients are those of one process": {"error": 0.5}},
}
# records of facts that no version here answers with yes
HOLDS = {
    "nccl.comm-init-rank": over(),
    "nccl.over-nvlink": {**over(), "joined": True},
    "overlap.events-across-devices": {"after_ms": 100.2, "busy_ms": 100.3},
    "overlap.microbatch-beside-the-next": {
        "ranks": [
            {
                "communication": [[5.0, 8.0], [10.0, 13.0], [15.0, 18.0], [20.0, 23.0]],
                "forward": [[0.0, 5.0], [5.0, 10.0], [10.0, 15.0], [15.0, 20.0]],
            },
            {
                "communication": [[5.0, 8.0], [10.0, 13.0], [15.0, 18.0], [20.0, 23.0]],
                "forward": [[0.0, 5.0], [5.0, 10.0], [10.0, 15.0], [15.0, 20.0]],
            },
        ]
    },
}
