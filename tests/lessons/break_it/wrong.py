"""Plausible wrong answers to the exercises of lesson 15, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch

from labkit import contract


def with_a_tolerance(exchange, x):
    every = exchange.gather("input", [round(value, 3) for value in x.nan_to_num().tolist()])
    if any(value != every[0] for value in every.values()):
        raise RuntimeError("inputs differ")


def by_values(exchange, x):
    every = [torch.tensor(value) for value in exchange.gather("input", x.tolist()).values()]
    if any(not torch.equal(value, every[0]) for value in every):
        raise RuntimeError("inputs differ")


def by_their_sum(exchange, x):
    every = exchange.gather("input", x.nan_to_num().double().sum().item())
    if any(value != every[0] for value in every.values()):
        raise RuntimeError("inputs differ")


def only_the_others(exchange, x):
    every = exchange.gather("input", contract.digest(x))
    if every[exchange.rank] != every[0]:
        raise RuntimeError("my input differs from rank 0's")


def the_first_elements(exchange, x):
    every = exchange.gather("input", contract.digest(x[:4]))
    if any(value != every[0] for value in every.values()):
        raise RuntimeError("inputs differ")


def announces_first(exchange, meta, tensors):
    contract.announce(exchange, contract.Plan("infer"))
    try:
        contract.send(contract.preflight(meta, tensors))
    except contract.PreflightError:
        pass


def says_nothing(exchange, meta, tensors):
    try:
        packed = contract.preflight(meta, tensors)
    except contract.PreflightError:
        return
    contract.announce(exchange, contract.Plan("infer"))
    contract.send(packed)


def sends_what_it_can(exchange, meta, tensors):
    kept = {name: value for name, value in meta.items() if isinstance(value, int)}
    contract.announce(exchange, contract.Plan("infer"))
    contract.send(contract.preflight(kept, tensors))


def forgets_the_tensors(exchange, meta, tensors):
    try:
        packed = contract.preflight(meta, {"y": torch.zeros(1)})
    except contract.PreflightError:
        contract.announce(exchange, contract.Plan("noop"))
        return
    contract.announce(exchange, contract.Plan("infer"))
    contract.send(packed)


def never_sends(exchange, meta, tensors):
    contract.announce(exchange, contract.Plan("noop"))


TRIPWIRES = {
    with_a_tolerance: "a tolerance lets drift through",
    by_values: "a NaN equals no NaN",
    by_their_sum: "a sum does not see an order",
    only_the_others: "all raise, or none",
    the_first_elements: "another shape has to be noticed",
}
LEADERS = {
    announces_first: "preflight before you announce",
    sends_what_it_can: "not sent in part",
    forgets_the_tensors: "send what preflight made",
    never_sends: "is announced as Plan('infer')",
}


WRONG = {"break_it.tripwire": TRIPWIRES, "break_it.lead": LEADERS}
