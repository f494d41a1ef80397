"""`dcp.load` of a checkpoint under names that wrappers have changed: the error gets both names and the line."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from oddrank.look import callables
from oddrank.look.parameter_names import name_parameters
from oddrank.look.steps import Options, Steps, watching
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(5, 7), nn.Linear(7, 5, bias=False)

    def forward(self, x):
        return x + self.out(self.gate(x).sigmoid())


def model(*kinds: str) -> nn.Module:
    cells = [Cell() for _ in range(3)]
    for i in range(3):
        if "compiled" in kinds:
            cells[i] = torch.compile(cells[i], backend="eager")
        if "compiled in place" in kinds:
            cells[i].compile(backend="eager")
        if "checkpointed" in kinds:
            cells[i] = checkpoint_wrapper(cells[i])
    return nn.Sequential(nn.Linear(4, 5), *cells)


def said(folder: Path, saved: nn.Module, asked: dict[str, torch.Tensor]) -> list[str]:
    """The notes of the error with which a checkpoint is loaded; no error has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without a process group dcp says so
        dcp.save({"net": saved.state_dict()}, checkpoint_id=folder)
        try:
            dcp.load({"net": asked}, checkpoint_id=folder)
        except BaseException as error:  # CheckpointException is no Exception
            assert "Missing key" in str(error)
            name_parameters(error)
            return getattr(error, "__notes__", [])
    return ["loaded"]


@pytest.fixture(autouse=True)
def looked_at():
    callables.renaming.clear()
    with watching(Steps(Options())):
        yield


def test_names_with_and_without_the_compiler_are_told_with_its_line(tmp_path):
    line = 1 + Path(__file__).read_text().splitlines().index(
        '            cells[i] = torch.compile(cells[i], backend="eager")'
    )
    (note,) = said(tmp_path, model("compiled"), model().state_dict())
    assert (
        "has `net.1._orig_mod.gate.weight` where `net.1.gate.weight` is asked for: 9 of the 9 missing" in note
    )
    assert (
        f"by `_orig_mod`, which torch.compile(module) adds (test_dcp_names.py:{line}); module.compile()"
        in note
    )


def test_the_other_way_round_and_with_another_wrapper(tmp_path):
    (note,) = said(tmp_path, model("checkpointed"), model("compiled").state_dict())
    assert (
        "has `net.1.gate.weight` where `net.1._orig_mod.gate.weight`" in note
    )  # its names are without the wrapper


def test_other_names_are_not_explained_and_equal_ones_load(tmp_path):
    assert said(tmp_path / "a", model(), {"7.gate.weight": torch.ones(7, 5)}) == []
    assert said(tmp_path / "b", model("compiled in place"), model().state_dict()) == ["loaded"]
