"""Records in which a part of a fact about caches and first calls is not true."""

ELSEWHERE = {
    "in another process": {"right": [True, False]},
    "compiles nothing": {"lowered": [0, 1]},
}

WRONG = {
    "caches.first-call-blocks": {
        "The first call": {"compiled_before": [False, True, True, True]},
        "later calls that fit do not compile": {"compiles": 2},
    },
    "caches.warmup-fits": {
        "compiles nothing": {"as_served": [0, 1]},
        "other rows": {"other_rows": [0, 0]},
        "another flag": {"other_flag": [0, 0]},
    },
    "caches.each-rank-compiles": {
        "Each rank compiles the same program itself": {"lowered": [[1], []], "pid": [1, 2]},
        "in its own process": {"lowered": [[1], [1]], "pid": [1, 1]},
        "at the same time": {"span": [[0.0, 1.0], [2.0, 3.0]]},
    },
    "caches.peers-wait": {"waits in the first collective": {"took": [0.25, 0.85]}},
    "caches.ranks-compile-what-they-see": {
        "a graph of its own branch only": {"calls": [[["sin"]], [["sin"]]]},
        "without an error": {"right": [True, False]},
    },
    "caches.break-on-one-rank": {
        "more graphs and one break more": {"everyone": [[[1, 0], [1, 0]]] * 2},
        "all_gather_object": {"everyone": [[[1, 0], [2, 1]], [[1, 0], [1, 0]]]},
        "right results": {"right": [True, False]},
    },
    "caches.local-cache": {
        "finds the compiled graph": {"hit": [0, 0], "miss": [2, 2]},
        "does not compile it again": {"lowered": [[1], [2]]},
    },
    "caches.remote-cache-is-shared": {
        "the process that compiles first": {"lowered": [0, 0]},
        "does not compile it again": {"lowered": [1, 1]},
    },
    "caches.one-hit-hangs": {
        "a cache hit on one rank only": {"hit": [3, 3]},
        "the rank that misses waits inside its compile": {"end": ["is past its compile", "done"]},
        "the rank that hits is past it": {"end": ["waits in its compile", "waits in its compile"]},
    },
    "caches.hits-are-unanimous": {
        "drops its hit": {"partitioned": [0, 1]},
        "both compile": {"partitioned": [1, 0]},
        "both end the step": {"end": ["is past its compile", "waits in its compile"]},
    },
    "caches.package-runs-elsewhere": ELSEWHERE,
    "caches.package-calls-c-only": {
        "C functions": {"c": 0},
        "nothing of torch's C++": {"cpp": 3},
    },
    "caches.aot-compile-runs-elsewhere": ELSEWHERE,
    "caches.precompile-runs-elsewhere": ELSEWHERE,
    "caches.regional": {
        "the operators of one block": {"operators": [48, 48]},
        "takes less time": {"outcome": "slower"},
    },
    "caches.regions-leave-the-rest": {
        "leaves the ranks' graphs the same": {"graphs": [[["all_reduce"]], [["mul"], ["all_reduce"]]]},
        "right results": {"right": [True, False]},
    },
}
HOLDS = {}
