"""What torch's released files say about backends that this machine cannot run: headers of the wheel, and Python."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import torch
from torch.distributed import distributed_c10d

from labkit.study.checks import READ, Bench, Result, Seen, cannot_tell, judging, probe, verdict

NCCL, MPI = "ProcessGroupNCCL.hpp", "ProcessGroupMPI.hpp"
SENTENCES = {
    "own stream": "The CUDA streams used by NCCL kernels",
    "apart": "each NCCL call is scheduled on a separate CUDA stream that is different from the current CUDA stream",
    "waiting": "let current stream wait for the NCCL to finish, this function is async operation as well",
    "syncing": "The CUDA events used to sync NCCL streams",
    "on demand": "created on-demand when a collective runs",
    "the id": "The store is used to broadcast the NCCL unique ID of rank 0",
    "installed": "MPI is only included if you build PyTorch from source on a host that has MPI installed",
}


@probe
def files(bench: Bench) -> Seen:
    """Of the classes for NCCL and MPI: members by type, methods, included headers, and what comments say."""
    folder = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
    nccl, mpi = ((folder / name).read_text(encoding="utf-8") for name in (NCCL, MPI))
    strings = [
        n.value
        for n in ast.walk(ast.parse(inspect.getsource(distributed_c10d)))
        if isinstance(n, ast.Constant)
    ]
    told = plain(nccl) + plain(mpi) + " ".join(" ".join(s.split()) for s in strings if isinstance(s, str))
    return {
        **declared(nccl),
        "included": re.findall(r"#include <(mpi\w*\.h)>", mpi),
        "said": [name for name, sentence in SENTENCES.items() if sentence in told],
    }


def plain(text: str) -> str:
    """A source text on one line, without the marks of its comments.

    >>> plain("  // All calls\\n  // are asynchronous.")
    'All calls are asynchronous.'
    """
    return " ".join(re.sub(r"^\s*(//\s*)+", "", text, flags=re.M).split())


def declared(header: str) -> dict[str, Any]:
    """The members of a C++ header's classes, of types that matter here, and the methods with an id in their name.

    >>> declared("std::unordered_map<std::string, at::cuda::CUDAStream> ncclStreams_;")["CUDAStream"]
    ['ncclStreams_']
    """
    code = " ".join(re.sub(r"//.*", "", header).split())
    kinds = ("CUDAStream", "CUDAEvent", "NCCLComm", "thread")
    members = {kind: re.findall(rf"\b{kind}(?:>+)? (\w+_);", code) for kind in kinds}
    return {**members, "methods": re.findall(r"\bvoid (\w*NCCLIDs?|destroyNCCLComms)\(", code)}


def _read(seen: Seen, there: bool, found: str, *names: str) -> Result:
    """The word for what is declared; a comment that is gone or reworded refutes nothing."""
    lacking = [SENTENCES[name] for name in names if name not in seen["said"]]
    if there and lacking:
        return cannot_tell(f"the sentence {lacking[0]!r} in this torch's files", found)
    return verdict(there, found + "".join(f"; “{SENTENCES[name]}”" for name in names if there))


@judging(files, word=READ)
def a_stream_is_kept(seen: Seen) -> Result:
    """The class keeps CUDA streams; comments say that they are for NCCL's kernels, and not the current stream."""
    streams = seen["CUDAStream"]
    return _read(
        seen, bool(streams), f"{NCCL} keeps {', '.join(streams) or 'no stream'}", "own stream", "apart"
    )


@judging(files, word=READ)
def communicators_are_managed(seen: Seen) -> Result:
    """The class makes communicators on demand, keeps them, and has a method that destroys them."""
    kept, ends = seen["NCCLComm"], "destroyNCCLComms" in seen["methods"]
    said = f"{NCCL} keeps {', '.join(kept) or 'no communicator'}, {'destroyNCCLComms' if ends else 'nothing'} ends them"
    return _read(seen, bool(kept) and ends, said, "on demand")


@judging(files, word=READ)
def the_id_is_broadcast(seen: Seen) -> Result:
    """The class has a method that broadcasts NCCL's unique id, and says that the store is used for that of rank 0."""
    names = [name for name in seen["methods"] if name.startswith("broadcast")]
    return _read(
        seen, bool(names), f"{NCCL} declares {', '.join(names) or 'no broadcast of an id'}", "the id"
    )


@judging(files, word=READ)
def events_synchronize(seen: Seen) -> Result:
    """The class keeps CUDA events to synchronize its streams; its wait lets the current stream wait, not the host."""
    events = seen["CUDAEvent"]
    return _read(seen, bool(events), f"{NCCL} keeps {', '.join(events) or 'no event'}", "syncing", "waiting")


@judging(files, word=READ)
def threads_streams_and_events(seen: Seen) -> Result:
    """The class keeps threads, CUDA streams, and CUDA events, which synchronize the streams."""
    kept = {kind: sorted(set(seen[kind])) for kind in ("thread", "CUDAStream", "CUDAEvent")}
    return _read(
        seen,
        all(kept.values()),
        f"{NCCL} keeps {'; '.join(', '.join(n) or f'no {k}' for k, n in kept.items())}",
        "syncing",
    )


@judging(files, word=READ)
def mpi_is_the_one_installed(seen: Seen) -> Result:
    """The class for MPI is built against the MPI of the host, whichever that is."""
    found = f"{MPI} includes {', '.join(seen['included']) or 'no header of MPI'}"
    return _read(seen, bool(seen["included"]), found, "installed")
