"""Attempts at the exercises of lesson 00 that give no answer; in a file of their own, since each rank imports it."""

from __future__ import annotations

import os

import torch.distributed as dist
from lessons.start.wrong import summed


def waits_alone(value, device):
    return summed(value, device) if dist.get_rank() == 0 else 1


def raises(value, device):
    return 1 / 0


def dies(value, device):
    os._exit(3)


def takes_nothing():
    return 1
