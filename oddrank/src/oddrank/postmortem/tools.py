"""The tools that do a part of this: tlparse for the traces of torch.compile, torchfrtrace for the records of NCCL."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from oddrank import files, tlparse
from oddrank.postmortem.material import Material

__all__ = ["Tool", "run"]

LIMIT_S = 120
FRTRACE = "from torch.distributed.flight_recorder.fr_trace import main; main()"  # what torchfrtrace calls


@dataclass(frozen=True)
class Tool:
    """What became of a tool: the page that it made, relative to ours, or a sentence that says why there is none."""

    name: str
    why: str
    link: str = ""


def run(material: Material, out: Path) -> list[Tool]:
    """Run the tools on what they read.

    Args:
        material: what was recognised.
        out: where their reports go.

    Returns:
        What became of each.
    """
    return [_tlparse(material, out), _frtrace(material, out)]


def _tlparse(material: Material, out: Path) -> Tool:
    traces = [file for file in material.files if file.kind == "TORCH_TRACE"]
    if not traces:
        return Tool("tlparse", "there is no log of TORCH_TRACE")
    with tempfile.TemporaryDirectory() as folder:
        for file in traces:
            rank = 0 if file.rank is None else file.rank
            name = f"dedicated_log_torch_trace_rank_{rank}_{len(os.listdir(folder))}.log"
            os.symlink(file.path.absolute(), Path(folder, name))
        why = tlparse.report(Path(folder), out / "tlparse")
    return Tool("tlparse", why.removeprefix("tlparse "), "" if why else "tlparse/index.html")


def _frtrace(material: Material, out: Path) -> Tool:
    if not material.dumps:
        return Tool("torchfrtrace", "there is no flight record")
    if any(dump.backend == "gloo" for dump in material.dumps.values()):
        return Tool("torchfrtrace", "not run: it fails on gloo's records (KeyError; torch 2.11 to 2.15)")
    if importlib.util.find_spec("torch") is None:
        return Tool("torchfrtrace", "torch is not installed")
    report = out / "torchfrtrace.txt"
    paths = {file.name: file.path.absolute() for file in material.files}
    with tempfile.TemporaryDirectory() as folder:
        for rank, dump in material.dumps.items():
            os.symlink(paths[dump.file], Path(folder, f"trace_{rank}"))
        why = _call(
            [sys.executable, "-c", FRTRACE, folder, "-p", "trace_", "--allow-incomplete-ranks"], report
        )
    if why:
        return Tool("torchfrtrace", f"it failed: {why}")
    return Tool("torchfrtrace", "", report.name)


def _call(command: list[str], output: Path) -> str:
    """Run a command, and write what it prints; '' or its last line where it failed."""
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
    text = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode:
        return text.splitlines()[-1][:200] if text else f"exit status {done.returncode}"
    files.write(output, text.encode())
    return ""
