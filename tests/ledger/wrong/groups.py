"""Records in which a part of a fact about process groups is not true."""

COORDINATE = {
    "coordinate": [1, 2],
    "members": [[4, 5], [1, 3, 5, 7]],
    "made": [],
    "lines": [[0]],
    "select": [0],
}
UNNAMED = {"named": False, "address": "127.0.0.1:1", "listens": True}
DEAF = {"named": True, "address": "127.0.0.1:1", "listens": False}

WRONG = {
    "groups.init-waits-for-all": {"No rank returns": {"after_the_last_came": -0.5}},
    "groups.only-rank-zero-waits": {
        "rank 0 alone waits": {"early": [0, 1, 2]},
        "the other ranks write their gloo addresses": {"early": [1]},
    },
    "groups.rank-zero-serves": {
        "rank 0's process serves": {"serves": [False, False, False, True]},
        "the others connect": {"connected": [True, True, False, True]},
        "RANK and WORLD_SIZE": {"world": [[0, 4], [1, 4], [2, 4], [3, 3]]},
    },
    "groups.rank-zero-counts": {
        "DistStoreError": {"said": ["", "", ""]},
        "how many ranks have come": {"said": ["DistStoreError: Timed out. 1/4 clients joined."] * 3},
    },
    "groups.add-is-atomic": {"gets each sum exactly once": {"once": False, "took_turns": False}},
    "groups.listens-everywhere": {"listens at every address of the machine": {"at": ["0100007F"]}},
    "groups.server-is-a-thread": {
        "one C++ thread": {"threads": 0, "with_clients": 0},
        "however many clients connect": {"with_clients": 5},
    },
    "groups.values-in-memory-of-rank-zero": {
        "is kept in the memory of rank 0's process": {"grown": 4096},
        "after the client that set it has gone": {"kept": 0},
    },
    "groups.client-waits-for-server": {
        "made before its server blocks": {"called": 0.1, "returned": 0.2},
        "until the server listens": {"works": False},
    },
    "groups.get-blocks": {
        "blocks until a client sets it": {"seconds": 0.0},
        "raises DistStoreError at the store's timeout": {"said": "", "gave_up_s": 0.0},
    },
    "groups.wait-takes-no-value": {
        "takes no value": {"takes": [False, True]},
        "returns as soon as the key of a counter is there": {"returned": False, "said": "DistStoreError"},
    },
    "groups.wait-before-set": {"both get a DistStoreError at the timeout": {"said": ["", ""]}},
    "groups.group-has-a-prefix": {
        "a PrefixStore with a prefix of its own": {"keys": ["0//1//ledger"]},
        "the same key holds a value for each group": {"values": ["group 1", "group 1"]},
    },
    "groups.gloo-writes-addresses": {
        "the default group": {"default": {}},
        "each new one": {"new": {}},
        "its host's name": {"new": {"0": UNNAMED, "1": UNNAMED}},
        "the address at which it listens": {"new": {"0": DEAF, "1": DEAF}},
    },
    "groups.order-of-new-groups": {"times out on both": {"said": ["", ""], "name": [2, 2]}},
    "groups.after-a-local-group": {
        "the next new_group of all ranks works": {
            "all": [["DistStoreError: wait timeout"] * 3] * 2,
            "name": [[2, 2, 1], [1, 1, 2]],
        }
    },
    "groups.overlapping-local": {"times out": {"second": [["", ""], ["", "", ""]]}},
    "groups.sort-ranks-false": {
        "rank 1 the group's rank 0": {"group_rank": 1},
        "all_gather": {"gathered": [0, 1]},
    },
    "groups.barrier-without-store": {
        "sends nothing to the store": {"to_store": 120},
        "from rank to rank": {"to_other": [0, 0]},
    },
    "groups.gloo-uses-tcp": {"all bytes of an all-reduce go over TCP": {"to_other": [512, 512]}},
    "groups.no-mpi": {
        "come without MPI": {"mpi": True},
        "raises a RuntimeError that asks for a build from source": {"error": ""},
    },
    "groups.backend-per-device": {
        "a backend for each device type": {"made": {"cpu": "ProcessGroupGloo", "meta": "ProcessGroupGloo"}}
    },
    "groups.process-group-is-cxx": {
        "a C++ class that pybind11 binds": {"bases": ["ProcessGroup", "object"]},
        "no method written in Python": {"in_python": ["allreduce"]},
    },
    "groups.mesh-columns-and-rows": {
        "stands at (1, 1)": {"ranks": [COORDINATE] * 8},
        "its column for axis 0, as [1, 5]": {"ranks": [COORDINATE] * 8},
        "its row for axis 1, as [4, 5, 6, 7]": {"ranks": [COORDINATE] * 8},
    },
    "groups.mesh-makes-new-groups": {
        "calls dist.new_group once for each column and row": {"ranks": [COORDINATE] * 8}
    },
    "groups.mesh-tensor-on-cpu": {
        "of a 'cuda' mesh": {"of_cuda": "cuda:0"},
        "under torch.device('meta')": {"under_meta": "meta"},
    },
    "groups.mesh-groups-are-cached": {
        "returns the same group each time": {"same": [True, True, False]},
        "in as many Python calls for three dimensions as for one": {"steps": [33, 41, 49]},
    },
    "groups.functional-takes-mesh": {
        "takes (mesh, dim) for its group": {"errors": ["TypeError"]},
        "reduces over mesh.get_group(dim)": {"sums": [3.0, 3.0, 2.0, 3.0]},
    },
}
HOLDS = {}
