"""An engine for `run_on_ranks.py`: keeps the tables of each program for the test, in the folder TABLES."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import torch.distributed as dist
from oddrank.record import merge, record
from programs import Program, call


def found(program: Program) -> dict[str, Any]:
    """Run a program, and return what its last turn counted."""
    step = program.make()
    with record(shapes=True) as rec:
        for turn in range(program.turns):
            with rec.forward() if turn == program.turns - 1 else contextlib.nullcontext():
                call(step, turn)
    with open(Path(os.environ["TABLES"], f"{program.name}_{dist.get_rank()}.pickle"), "wb") as file:
        pickle.dump(merge([rec]), file)
    (counts,) = rec.counts.dicts()
    return counts
