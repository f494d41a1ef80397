"""Records in which a part of a fact is not true."""

RIGHT = {f"{place} {name}": ["right"] for place in ("first", "last") for name in ("up", "down", "norm")}
TWICE = {name: ["2 x right"] for name in RIGHT}
NOT_TWICE = {"eager": {"eager": RIGHT}, "compiled": {"compiled": RIGHT}}
NOT_RIGHT = {
    "eager": {"eager": {**RIGHT, "last down": ["2 x right"]}},
    "compiled": {"compiled": {**RIGHT, "first norm": ["right", "wrong"], "last up": ["wrong"]}},
}
WRONG = {
    "tensor_parallel.functional-after-a-replicated-loss": NOT_TWICE,
    "tensor_parallel.functional-after-a-summed-loss": NOT_RIGHT,
    "tensor_parallel.nn-functional-after-a-replicated-loss": {
        "twice those of one process on two ranks": {"eager": RIGHT}
    },
    "tensor_parallel.in-place-differs-compiled": {
        "those of one process in eager": {"eager": TWICE},
        "twice those compiled": {"compiled": RIGHT},
    },
    "tensor_parallel.f-and-g": NOT_RIGHT,
    "tensor_parallel.by-placements": NOT_RIGHT,
}
