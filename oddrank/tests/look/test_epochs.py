"""Epochs and random numbers that repeat: each is told, its repaired twin is not."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd
import pytest
import torch
from oddrank.look import trained, training
from oddrank.look.epochs import Epochs, repeated
from oddrank.look.steps import Options, Steps, watching
from oddrank.record import Record
from torch.utils.data import DataLoader, DistributedSampler


def run(*, advance: bool = False, shuffle: bool = True, evaluation: bool = False, stop: int = 9) -> list[str]:
    """What is said of three epochs, or of three evaluations between them."""
    data = [torch.full((2,), float(n)) for n in range(12)]
    weight = torch.nn.Parameter(torch.ones(2))
    steps = Steps(Options())
    epochs = Epochs(steps)
    with watching(steps), epochs.watching():
        sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=shuffle)
        opt = torch.optim.SGD([weight], 0.1)
        for epoch in range(3):
            if advance:
                sampler.set_epoch(epoch)
            for x in itertools.islice(DataLoader(data, batch_size=2, sampler=sampler), stop):
                loss = (weight * x).sum()
                if not evaluation:
                    loss.backward()
                    opt.step()
            opt.step()
    return [f"{one.place}: {one.said}" for one in repeated(epochs.table().assign(rank=0))]


@pytest.mark.parametrize("stop", [9, 2])  # an epoch that is left early is one
def test_an_order_that_repeats_is_told_at_the_line_of_the_loop(stop):
    (said,) = run(stop=stop)
    text = Path(__file__).read_text().splitlines()
    (line,) = [n for n, one in enumerate(text, 1) if "for x in itertools" in one and '"' not in one]
    assert said == f"test_epochs.py:{line}: DistributedSampler gave the same order in 3 epochs"


@pytest.mark.parametrize("healthy", [{"advance": True}, {"shuffle": False}, {"evaluation": True}])
def test_an_order_that_is_new_or_meant_or_trains_nothing_is_not_told(healthy):
    assert run(**healthy) == []


def notes(seeds: tuple[int, int], draws: tuple[bool, ...], batches: tuple[int, int] = (0, 1)) -> list[str]:
    """What is said of two ranks that draw in some of their steps."""
    found = []
    for rank, (seed, batch) in enumerate(zip(seeds, batches, strict=True)):
        steps = Steps(Options())
        one = training.Training(steps)
        steps.open, steps.rec = True, Record()
        torch.manual_seed(seed)
        for steps.found, draw in enumerate(draws, 3):
            one._given((torch.full((3,), float(batch + steps.found)),), {})
            if draw:
                torch.rand(4)
            one._after([], set())
        table = pd.DataFrame(one._seen, columns=["step", "kind", "fingerprint"])
        found.append(table.assign(rank=rank, ranks="0,1"))
    return trained.drawn_alike(pd.concat(found))


def test_random_numbers_that_are_alike_in_every_step_are_told():
    (said,) = notes((7, 7), (True, True, True))
    assert said.startswith("ranks 0, 1 drew the same random numbers in each recorded step, for other inputs")
    assert notes((7, 8), (True, True, True)) == []
    assert notes((7, 7), (True, True, True), batches=(0, 0)) == []  # one batch is a finding of its own
    assert notes((7, 7), (True, True, False)) == []  # as a loader does, where an epoch begins
    assert notes((7, 7), (True, True)) == []  # one step tells too little
