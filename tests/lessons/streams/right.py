"""Right answers to the exercises of lesson 06 in other words than those of the solutions."""

from __future__ import annotations

import functools

import torch
from torch import Event, Stream
from torch.accelerator import current_stream


def _repaired(matmul, x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    h = matmul(x, w)
    made.record()
    with side:
        made.wait()
        norm = matmul(h, h)
    h.record_stream(side)
    h = torch.relu(x)
    y = matmul(h, w)
    here.wait_stream(side)
    return y + norm


partly_called = functools.partial(_repaired, torch.matmul)


class Called:
    def __call__(self, x, w):
        return _repaired(torch.mm, x, w)


def imported(x, w):
    here, side, made = current_stream(), Stream(x.device), Event()
    h = x @ w
    made.record()
    with side:
        made.wait()
        norm = h @ h
    h.record_stream(side)
    y = torch.relu(x) @ w
    here.wait_stream(side)
    return y + norm


def sets_the_stream(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    h = x @ w
    made.record()
    torch.accelerator.set_stream(side)
    made.wait()
    norm = h @ h
    torch.accelerator.set_stream(here)
    h.record_stream(side)
    h = torch.relu(x)
    y = h @ w
    here.wait_stream(side)
    return y + norm


def _placed(wait, x, log):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    side.wait_stream(here)
    with side:
        b = x @ x
        made.record()
        log.copy_(b @ b @ b)
    p = x @ x
    q = p @ x
    wait(here, made)
    r = q + b
    return r @ x


place = functools.partial(_placed, lambda here, made: made.wait(here))

RIGHT = {"streams.repair": (partly_called, Called(), imported, sets_the_stream), "streams.place": (place,)}
