"""Records in which a part of a fact is not true."""

BOTH = {"ranks": [{"gave": [8.0, 32.0], "ended": ""}] * 2}
RAISED = {"gave": None, "ended": "RuntimeError: x", "said": "x"}
ONE_RAISED = {"ranks": [{"gave": [2.0, 4.0, 3.0, 4.0], "ended": ""}, RAISED]}
RIGHT_TENSORS = {"ranks": [{"gave": [[2.0] * 4, [20.0] * 4], "ended": ""}] * 2}
RIGHT_SUM = {"ranks": [{"gave": [2.0, 4.0, 6.0, 8.0], "ended": ""}] * 2}
RIGHT_TYPES = {"ranks": [{"gave": [2.0] * 4, "ended": ""}] * 2}
RIGHT_SHAPES = {"ranks": [{"gave": [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]], "ended": ""}] * 2}
LATE = {"gave": None, "ended": "timed out", "said": ""}
CALLED = {"ended": "", "changed": False, "values": [0.0, 0.0], "seconds": 0.0}
CHANGED = [{**CALLED, "changed": True}] + [CALLED] * 2
GROUP = [{"graphs": 1, "values": [4.0, 8.0]}] * 2

WRONG = {
    "symmetry.one-collective-more-hangs": {
        "a size": {"size": BOTH},
        "a flag": {"flag": BOTH},
        "the data": {"data": BOTH},
    },
    "symmetry.one-rank-does-not-show": {
        "is right in a job of one rank with either flag": {"alone": [{"gave": [4.0, 4.0]}, {"gave": None}]},
        "times out in a job of two ranks with different flags": BOTH,
    },
    "symmetry.guard-collectives": {
        "makes both ranks compile again": {
            "ranks": [{"graphs": 1, "value": 5.0}, {"graphs": 2, "value": 5.0}]
        },
        "with the right sum": {"ranks": [{"graphs": 2, "value": 4.0}, {"graphs": 2, "value": 5.0}]},
    },
    "symmetry.opposite-order-hangs": {
        "in eager": {"order of kinds": BOTH},
        "as functional collectives in a compiled function": {"order in a graph": BOTH},
    },
    "symmetry.swapped-tensors-mix": {
        "without an error": {"order of tensors": {"ranks": [RAISED] * 2}},
        "each sum adds one rank's first tensor to the other's second": {"order of tensors": RIGHT_TENSORS},
    },
    "symmetry.other-operation-is-silent": {
        "ends without an error": {"op": ONE_RAISED},
        "neither the sum nor the maximum": {"op": RIGHT_SUM},
    },
    "symmetry.other-metadata-is-silent": {
        "without an error": {"dtype": {"ranks": [RAISED] * 2}},
        "float32 and int32": {"dtype": RIGHT_TYPES},
        "2 x 3 and 3 x 2": {"shape": RIGHT_SHAPES},
    },
    "symmetry.other-size-aborts": {
        "aborts the process of the rank with fewer elements": {"ranks": ["timed out", ""]},
    },
    "symmetry.detail-names-the-mismatch": {
        "another collective": {"order of kinds": BOTH},
        "dtype": {"dtype": BOTH},
        "shape": {"size": BOTH},
    },
    "symmetry.detail-lets-pass": {
        "another ReduceOp": {"op": ONE_RAISED},
        "tensors of one shape in another order": {"order of tensors": ONE_RAISED},
    },
    "symmetry.late-is-a-timeout": {
        "raises at the group's timeout": {"ranks": [{"gave": 2.0, "ended": ""}] * 2},
    },
    "symmetry.monitored-barrier-names-the-rank": {"names the rank that has not come": {"rank_zero": ""}},
    "symmetry.outsider-is-ignored": {
        "dist.all_reduce": {"all_reduce": CHANGED},
        "dist.broadcast": {"broadcast": CHANGED},
        "within a second": {"broadcast": [{**CALLED, "seconds": 1.5}] + [CALLED] * 2},
        "get the right values": {"all_reduce": [CALLED] * 3},
    },
    "symmetry.functional-outsider-raises": {"raises an error": {"functional": [CALLED] * 3}},
    "symmetry.a-member-too-many-hangs": {
        "time out": {"ranks": [{"gave": 0, "ended": ""}, LATE, {"gave": 2.0, "ended": ""}]},
    },
    "symmetry.outside-compiles-nothing": {
        "compiles no graph": {"ranks": [{"graphs": 1, "values": [1.0, 2.0]}, *GROUP]},
        "the group's sums are right": {"ranks": [{"graphs": 0, "values": [1.0, 2.0]}] * 3},
    },
    "symmetry.break-with-buckets-hangs": {
        "waiting for each other in different collectives": {"waits": ["all_reduce", "all_reduce"]},
    },
    "symmetry.spmd-check-raises": {
        "raises an error on both ranks": {"ranks": [{"raised": "", "right": True}] * 2},
    },
}
HOLDS = {}
