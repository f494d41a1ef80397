"""The tools that do a part of this: tlparse for the traces of torch.compile, torchfrtrace for the records of NCCL."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from oddrank import files, tlparse
from oddrank.postmortem.material import Material

__all__ = ["Tool", "run"]

LIMIT_S = 120
FRTRACE = "from torch.distributed.flight_recorder.fr_trace import main; main()"  # what torchfrtrace calls


class Tool:
    """What became of a tool: the page that it made, relative to ours, or a sentence that says why there is none."""

    def __init__(self, name: str, said: str, link: str = "") -> None:
        self.name, self.said, self.link = name, said, link


def run(material: Material, places: dict[str, Path], out: Path) -> list[Tool]:
    """Run the tools on what they read.

    Args:
        material: what was recognised.
        places: the path of each file by its name in the evidence.
        out: where their reports go.

    Returns:
        What became of each.
    """
    return [_tlparse(material, places, out), _frtrace(material, places, out)]


def _tlparse(material: Material, places: dict[str, Path], out: Path) -> Tool:
    traces = [read for read in material.reads if read.kind == "TORCH_TRACE"]
    if not traces:
        return Tool("tlparse", "there is no log of TORCH_TRACE")
    with tempfile.TemporaryDirectory() as folder:
        for read in traces:
            rank = 0 if read.rank is None else read.rank
            name = f"dedicated_log_torch_trace_rank_{rank}_{len(os.listdir(folder))}.log"
            os.symlink(places[read.file].absolute(), Path(folder, name))
        why = tlparse.report(Path(folder), out / "tlparse")
    return Tool("tlparse", why.removeprefix("tlparse "), "" if why else "tlparse/index.html")


def _frtrace(material: Material, places: dict[str, Path], out: Path) -> Tool:
    if not material.dumps:
        return Tool("torchfrtrace", "there is no flight record")
    if any(dump.backend == "gloo" for dump in material.dumps.values()):
        return Tool("torchfrtrace", "not run: it fails on gloo's records (KeyError; torch 2.11 to 2.15)")
    if importlib.util.find_spec("torch") is None:
        return Tool("torchfrtrace", "torch is not installed")
    told = out / "torchfrtrace.txt"
    with tempfile.TemporaryDirectory() as folder:
        for rank, dump in material.dumps.items():
            os.symlink(places[dump.file].absolute(), Path(folder, f"trace_{rank}"))
        why = _call([sys.executable, "-c", FRTRACE, folder, "-p", "trace_", "--allow-incomplete-ranks"], told)
    if why:
        return Tool("torchfrtrace", f"it failed: {why}")
    return Tool("torchfrtrace", "", told.name)


def _call(command: list[str], told: Path | None) -> str:
    """Run a command; '' or the last line that it said where it failed."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {LIMIT_S} s"
    except OSError as error:
        return error.strerror or str(error)
    said = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode:
        return said.splitlines()[-1][:200] if said else f"exit status {done.returncode}"
    if told:
        files.write(told, said.encode())
    return ""
