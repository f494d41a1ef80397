"""Plausible wrong answers to the exercises of lesson 13, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist


def _mean(losses):
    return losses.mean()


def _added_up(losses):
    return losses.sum()


def _each(losses):
    return losses


def _without_the_empty(losses):
    if not len(losses):
        return losses.sum()
    count = torch.tensor(float(len(losses)))
    dist.all_reduce(count)
    return losses.sum() * dist.get_world_size() / count


WEIGHED = {
    _mean: "weigh each rank by its share of them",
    _added_up: "of equal batches the mean over a rank's images is right",
    _each: "returns one number to go back from",
    _without_the_empty: "the ranks wait for each other",
}


WRONG = {"training.weigh": WEIGHED}
