"""The program of the experiments on cold starts: a file of source, so that it can be edited, and what the edits are."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from labkit import files

__all__ = ["DEPTH", "EDITS", "SOURCE", "batch", "imported", "made", "write"]

NAME = "labkit_cold_program"
WIDTH = 32
DEPTH = 2  # blocks of the model
SOURCE = f'''\
"""A few blocks of a product, an activation and an all-reduce; every rank has the same weights."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5, requires_grad=False)

    def forward(self, x):
        h = nn.functional.gelu(x @ self.weight)
        return funcol.all_reduce(h, "avg", dist.group.WORLD)


class Model(nn.Module):
    def __init__(self, blocks={DEPTH}, width=32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Products(nn.Module):
    """Products alone: no loop of C++ has to be built for them, and the caches work all the same."""

    def __init__(self, blocks=2, width=32):
        super().__init__()
        shapes = (torch.randn(width, width) / width**0.5 for _ in range(blocks))
        self.weights = nn.ParameterList(nn.Parameter(shape, requires_grad=False) for shape in shapes)

    def forward(self, x):
        for weight in self.weights:
            x = x @ weight
        return x
'''
# an edit of the code: what stands there before and after
EDITS = {"transposed": ("x = x @ weight", "x = x @ weight.t()")}


def write(folder: str | Path, edit: str = "") -> Path:
    """Write the program into a folder, edited or as it is, and return the folder. Raises ValueError for another edit.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     "weight.t()" in next(write(folder, "transposed").iterdir()).read_text()
    True
    """
    if edit and edit not in EDITS:
        raise ValueError(f"unknown edit {edit!r}: there is {', '.join(EDITS)}")
    text = SOURCE
    if edit:
        before, after = EDITS[edit]
        text, times = re.subn(re.escape(before), after, SOURCE)
        assert times == 1, before
    files.replace(Path(folder) / f"{NAME}.py", text.encode())
    return Path(folder)


@contextmanager
def imported(folder: str | Path) -> Iterator[Any]:
    """The program's module, imported from this folder, and from no other where one was imported before."""
    sys.modules.pop(NAME, None)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(NAME)
    finally:
        sys.path.remove(str(folder))


def made(folder: str | Path, name: str) -> Any:
    """A model of the program in a folder, 'Model' or 'Products', with the same weights in every process."""
    with imported(folder) as program:
        torch.manual_seed(0)
        return getattr(program, name)()


def batch(rows: int = 4) -> Any:
    """An input: float32 [rows, WIDTH], the same on every rank."""
    return torch.linspace(-1, 1, rows * WIDTH).reshape(rows, WIDTH)
