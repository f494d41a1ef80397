"""Records in which a part of a fact is not true."""

RANK = {"failed": "", "coordinate": True, "group": "an input", "starts": [0], "right": True}
ALL = [RANK] * 4
FAILED = [{"error": "RuntimeError: x", "right": False, "hits": 0, "misses": 0}] * 4
RAN = [{"error": "", "right": True, "hits": 1, "misses": 0}] * 4
ZEROS = [[0.0]] * 4

WRONG = {
    "one_rank.uneven-shards-one-graph": {
        "four ranks have one graph": {"graphs": 4},
        "_runtime_compute_coordinate_on_dim": {"ranks": [{**RANK, "coordinate": False}] * 4},
        "the result is right on each": {"ranks": [*ALL[1:], {**RANK, "right": False}]},
    },
    "one_rank.mesh-group-is-looked-up": {
        "four ranks have one graph": {"graphs": 2},
        "takes the group from the mesh, an input": {"ranks": [{**RANK, "group": "a name"}] * 4},
    },
    "one_rank.off-by-default": {"off by default": {"default": True}, "four graphs": {"graphs": 1}},
    "one_rank.place": {"either sets the other": {"old_follows": False}},
    "one_rank.get-rank-stays": {
        "a graph of its own": {"graphs": 1},
        "starts at the number of the rank": {"ranks": ALL},
    },
    "one_rank.dtensor-mesh-is-a-constant": {
        "a DeviceMesh that the graph holds as a constant": {"ranks": ALL}
    },
    "one_rank.another-group-is-wrong": {
        "returns the sum over the first one": {"sums": [[2.0, 8.0]] * 4},
        "without a recompile": {"graphs": [2] * 4},
    },
    "one_rank.another-mesh-is-right": {
        "returns the sum over the mesh of the call": {"sums": [[2.0, 2.0]] * 4},
    },
    "one_rank.aot-runs-on-all": {"runs on all four ranks with the right result": {"ranks": FAILED}},
    "one_rank.aot-dtensor-fails": {"raises an error on every rank": {"ranks": [*FAILED[1:], *RAN[:1]]}},
    "one_rank.precompile-runs-on-all": {"runs on all four ranks with the right result": {"ranks": FAILED}},
    "one_rank.disk-cache-misses": {"every other rank misses": {"ranks": RAN}},
    "one_rank.buckets-hold-the-rank": {
        "four ranks have four codes": {"codes": 1},
        "the place of the rank's own part in the bucket is a number": {"numbers": [[0, 3, 1, 2]]},
    },
    "one_rank.empty-shard": {
        "compiles on every rank": {"failed": ["", "", "", "RuntimeError: x"]},
        "with the right result": {"right": [True, True, True, False]},
    },
    "one_rank.compiler-collectives-need-a-device": {
        "raises a TypeError on both ranks": {"ranks": [{"failed": "", "sizes": ["(s1, 3)"]}] * 2},
    },
    "one_rank.sizes-are-agreed": {
        "compile the same graph": {
            "ranks": [{"failed": "", "sizes": ["(4, 3)"]}, {"failed": "", "sizes": ["(6, 3)"]}]
        },
        "with a symbol for the number of rows": {"ranks": [{"failed": "", "sizes": ["(4, 3)"]}] * 2},
    },
    "one_rank.local-tensor-collectives": {"give each rank what four gloo ranks get": {"found": {}}},
    "one_rank.local-tensor-with-the-switch": {"give each rank what four gloo ranks get": {"found": {}}},
    "one_rank.local-tensor-get-rank": {"gives each rank its own number": {"found": ZEROS}},
    "one_rank.local-tensor-coordinates": {"gives each of four ranks its own coordinate": {"found": ZEROS}},
    "one_rank.torchcomms-is-off": {
        "is off by default": {"default": True},
        "is a ProcessGroupGloo": {"group": "FakeProcessGroup"},
    },
}
HOLDS = {}
