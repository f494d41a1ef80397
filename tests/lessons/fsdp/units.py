"""The parts of answers to `fsdp.unit`."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from labkit import lessons


@functools.cache
def base():
    """The lesson's Unit, without the three methods."""
    return lessons.program("fsdp").Unit


@functools.cache
def right_unit():
    """A right unit, each step a method of its own, to be spoilt."""

    class Right(base()):
        def use(self):
            if not self.is_whole:
                self.receive()
                parts = self.rows.split([piece.numel() for piece in self.pieces], dim=1)
                for (owner, name), weight, part in zip(self.owners, self.wholes, parts, strict=True):
                    self.fill(weight, part)
                    setattr(owner, name, weight)
                self.gathering, self.is_whole = None, True

        def receive(self):
            self.gathering.wait()

        def fill(self, weight, part):
            weight.untyped_storage().resize_(weight.numel() * weight.element_size())
            weight.data.copy_(part.reshape(weight.shape))

        def ready(self, weight):
            self.missing -= 1
            if not self.missing:
                self.reset()
                rows = torch.cat([self.lines(weight.grad) for weight in self.wholes], dim=1)
                self.clear()
                self.scattering = self.send(rows)

        def lines(self, gradient):
            return gradient.view(self.ranks, -1)

        def reset(self):
            self.missing = len(self.wholes)

        def clear(self):
            for weight in self.wholes:
                weight.grad = None
            self.free()

        def send(self, rows):
            mine = torch.empty_like(rows[0])
            return dist.reduce_scatter(mine, list(rows), async_op=True), mine, rows

        def finish(self):
            work, mine, _ = self.scattering
            work.wait()
            parts = self.divided(mine).split([piece.numel() for piece in self.pieces])
            for piece, part in zip(self.pieces, parts, strict=True):
                piece.grad = part.view_as(piece)
            self.scattering = None

        def divided(self, mine):
            return mine / self.ranks

    return Right


def spoilt(name, **methods):
    """A right unit but for some methods."""
    return type(name, (right_unit(),), methods)
