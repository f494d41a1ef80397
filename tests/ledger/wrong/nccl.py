"""Records in which a part of a fact about NCCL is not true."""

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


ELSEWHERE = [{**one, "of_this_host": False} for one in TWO]

WRONG = {
    "nccl.nccl-is-nccl2": {"makes a ProcessGroupNCCL2": {"nccl": "ProcessGroupNCCL"}},
    "nccl.id-in-store": {
        "rank 0 alone puts": over(late=({"0": 1}, {"1": 1})),
        "one id of 128 bytes into the store for each communicator": over(identity=TWO[:1]),
        "the others find it there": {"ranks": [*ranks()[:1], *ranks(identity=[])[1:]]},
    },
    "nccl.id-holds-address-and-key": {
        "another key of 8 bytes each time": over(identity=[ID, ID]),
        "an address of rank 0's machine": over(identity=ELSEWHERE),
    },
    "nccl.communicator-at-first-collective": {
        "no communicator and no channel before its first collective": over(before=INIT[:1]),
        "has both after it": over(after=INIT),
        "destroy_process_group ends the communicator": over(ended=[]),
    },
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
    "nccl.barrier-waits-for-gpus": {
        "waits for the GPU work of the other rank": {
            "ranks": [{"ms": 0.2, "late": False}, {"ms": 300, "late": True}]
        }
    },
    "nccl.barrier-is-an-all-reduce": {
        "an all-reduce": {"new": [["nccl:barrier", [[1]], ["Float"]]]},
        "of one element": {"new": [["nccl:all_reduce_barrier", [[2]], ["Float"]]]},
    },
}

# no version here has a GPU
HOLDS = {
    "nccl.id-in-store": over(),
    "nccl.id-holds-address-and-key": over(),
    "nccl.communicator-at-first-collective": over(),
    "nccl.comm-init-rank": over(),
    "nccl.over-nvlink": {**over(), "joined": True},
    "nccl.barrier-waits-for-gpus": {"ranks": [{"ms": 303, "late": False}, {"ms": 300, "late": True}]},
    "nccl.barrier-is-an-all-reduce": {"known": 1, "new": [["nccl:all_reduce_barrier", [[1]], ["Float"]]]},
}
