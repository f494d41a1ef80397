"""Flight records in the form of those of an H100, for tests, and the verdict on a folder."""

from __future__ import annotations

import pickle
from pathlib import Path

from oddrank.postmortem.folder import gather
from oddrank.postmortem.judgement import judge

DATA = Path(__file__).parents[3] / "data"  # of the checkout: recorded jobs
TIMEOUT = (
    "[/a/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
)
CLOSED = "[/a/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2344."


def entry(seq, op="nccl:all_reduce", size=1024, group="0", desc="default_pg", line=10, done=True, **more):
    """A call as torch 2.13 records it, with the keys of a record from an H100."""
    c10d = "site-packages/torch/distributed/distributed_c10d.py"
    stack = ((c10d, 3245, "all_reduce"), ("train.py", line, "step"), ("train.py", 1, "main"))
    frames = [dict(zip(("filename", "line", "name"), frame, strict=True)) for frame in stack]
    held = {
        "collective_seq_id": seq,
        "frames": frames,
        "input_dtypes": ["Float"],
        "input_sizes": [[size]],
        "is_p2p": False,
        "op_id": seq,
        "output_dtypes": ["Float"],
        "output_sizes": [[size]],
        "p2p_seq_id": 0,
        "pg_id": 0,
        "process_group": (group, desc),
        "profiling_name": op,
        "record_id": seq - 1,
        "retired": done,
        "state": "completed" if done else "scheduled",
        "time_created_ns": 1795805634957985013 + seq * 10**6,
        "timeout_ms": 8000,
    }
    return held | more


def dump(folder, rank, entries, groups):
    config = {name: {"name": name, "desc": "", "ranks": str(list(ranks))} for name, ranks in groups.items()}
    held = {
        "version": "2.10",
        "pg_config": config,
        "pg_status": {},
        "comm_lib_version": "",
        "entries": entries,
    }
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(held, protocol=2))


def verdict_on(folder):
    """The verdict on a folder, and what was read."""
    material = gather([folder])
    return judge(material), material


def text_of(verdict) -> str:
    """Its sentences with their evidence, a line each."""
    return "\n".join(map(str, [verdict.head, *verdict.chain]))


def failed(rank: int, line: int, text: str, kind: str = "RuntimeError") -> str:
    """What a rank prints under torchrun where an error ends it."""
    lines = (
        "Traceback (most recent call last):",
        f'  File "/a/train.py", line {line}, in step',
        f"{kind}: {text}",
    )
    return "".join(f"[rank{rank}]: {one}\n" for one in lines)
