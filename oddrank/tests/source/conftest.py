"""Every program of the golden tables, run once as a user does: a trace, torch's logs, and tables from the process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from oddrank.record import merge
from oddrank.record.tables import Tables

RECORD = Path(__file__).parents[1] / "record"
HELPERS = [str(RECORD), str(Path(__file__).parent)]
sys.path[:0] = HELPERS


@dataclass
class Run:
    """What the programs of one size of job left."""

    folder: Path
    ranks: int

    def said(self, rank: int) -> list[Any]:
        """Torch's own words, a record each."""
        from torch_says import records

        (log,) = self.folder.glob(f"logs/*/attempt_0/{rank}/stderr.log")
        return list(records(log.read_text(encoding="utf-8", errors="replace").splitlines()))

    def tables(self) -> Iterator[tuple[str, Tables]]:
        """The tables of each program from the running processes, all ranks together."""
        for first in sorted(self.folder.glob("*_0.pickle")):
            name = first.name.removesuffix("_0.pickle")
            each = [self.folder / f"{name}_{rank}.pickle" for rank in range(self.ranks)]
            yield name, merge([pickle.loads(one.read_bytes()) for one in each])


def run_programs(folder: Path, ranks: int) -> Run:
    """Run them under torchrun, all in one process a rank, with a reset of Dynamo between two."""
    from programs import PROGRAMS

    names = [name for name, one in PROGRAMS.items() if one.ranks == ranks]
    env = {
        "ENGINE": "told",
        "TABLES": str(folder),
        "TORCH_TRACE": str(folder / "trace"),
        "OMP_NUM_THREADS": "1",
    }
    env |= {"TORCH_LOGS": "graph_breaks,recompiles,graph_code", "PYTHONPATH": os.pathsep.join(HELPERS)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["--redirects", "3", "--log-dir", str(folder / "logs")]
    command += [str(RECORD / "run_on_ranks.py"), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
    said = [
        path.read_text(errors="replace")[-2000:]
        for path in sorted(folder.glob("logs/*/attempt_0/*/stderr.log"))
    ]
    assert done.returncode == 0, "\n".join([done.stderr[-2000:], *said])
    return Run(folder, ranks)


@pytest.fixture(scope="session")
def golden(tmp_path_factory) -> list[Run]:
    """The programs of one rank, and those of two."""
    return [run_programs(tmp_path_factory.mktemp(f"ranks_{ranks}"), ranks) for ranks in (1, 2)]
