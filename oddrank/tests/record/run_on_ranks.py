"""Run programs on the ranks that torchrun started: `run_on_ranks.py FOLDER NAME ...` writes FOLDER/rank_0.json."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from programs import PROGRAMS, Program
from torch._dynamo.utils import counters


def measured(program: Program, found: Callable[[Program], dict[str, Any]]) -> dict[str, Any]:
    """Return what an engine found in a program on this rank, and torch's own counters after it."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    table = found(program)
    kept = {kind: dict(sorted(counters[kind].items())) for kind in ("frames", "stats")}
    return table | {"counters": kept | {"graph_break": sum(counters["graph_break"].values())}}


def main(folder: str, *names: str) -> None:
    """Run the programs in order. Another module with a `found` may be named in the environment variable ENGINE."""
    found = importlib.import_module(os.environ.get("ENGINE", "engine")).found
    dist.init_process_group("gloo")
    tables = {}
    for name in names:
        tables[name] = measured(PROGRAMS[name], found)
        dist.barrier()
    Path(folder, f"rank_{dist.get_rank()}.json").write_text(json.dumps(tables), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
