"""Records in which a part of a fact about graphs, logs and numbers is not true."""

DIFFER = {"a * b + c": 1822, "(a * b) * c + a": 0, "sin(a) * b": 0, "silu(a) * b": 0}

WRONG = {
    "reading.graph-breaks-log": {
        "the line and the reason of each": {"named": {"print": True, "disable": False}},
    },
    "reading.functional-graph": {
        "only functional operations": {"in_place": ["aten.add_.Tensor", "aten.copy_.default"]},
        "one copy_ to the input as the last": {"copy_last": False},
    },
    "reading.caller-sees-the-change": {
        "changed in the caller": {"caller": 1.0},
        "result is eager's": {"same": False},
    },
    "reading.any-order": {"gives eager's result": {"wrong": 3}},
    "reading.fusion": {"one kernel": {"program": 2}},
    "reading.not-bitwise": {"not bit for bit eager's": {"eager": DIFFER}},
    "reading.rounded-once": {"float32 rounded once, at the end": {"once": DIFFER}},
    "reading.order-of-a-sum": {
        "adds in another order than eager": {"normal": 0},
        "sums of whole numbers are equal": {"whole": 2},
    },
    "reading.emulate-precision-casts": {"bit for bit eager's": {"eager": DIFFER}},
    "reading.emulate-times-a-number": {"bit for bit eager's": {"eager": {"a * 0.3": 3942}}},
    "reading.add-a-number": {"bit for bit eager's": {"eager": {"a + 0.3": 2915}}},
    "reading.stage-by-stage": {
        "a branch that tracing takes with eager": {"takes_a_branch": {"eager": 0, "aot_eager": 8192}},
        "a decomposed lerp with aot_eager_decomp_partition": {"is_decomposed": {"eager": 7, "inductor": 7}},
        "the rounding of a fused a * b + c with inductor": {"rounds": {"eager": 0, "inductor": 0}},
    },
}
# HOLDS: records of facts that no version here answers with yes
HOLDS: dict[str, dict] = {}
