"""Attempts at the exercise of lesson 00 that give no answer; in a file of their own, since each rank imports it."""

from __future__ import annotations

import os

import torch.distributed as dist
from lessons.start.wrong import summed


def waits_alone(device):
    return summed(device) if dist.get_rank() == 0 else 1


def raises(device):
    return 1 / 0


def dies(device):
    os._exit(3)


def takes_nothing():
    return 1
