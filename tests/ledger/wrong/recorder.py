"""Records in which a part of a fact is not true."""

WAITS = {"profiling_name": "gloo:all_reduce", "input_sizes": [[8]], "state": "scheduled", "retired": False}

WRONG = {
    "recorder.keeps-gloo": {
        "its name, its sizes": {"waiting": {}},
        "retired=False": {"waiting": {**WAITS, "retired": True}},
        "retired=True once it has ended": {"ended": [False]},
    },
    "recorder.torchfrtrace-fails-on-gloo": {"ends with a KeyError": {"rc": 0, "last": "no errors"}},
}
HOLDS = {}
