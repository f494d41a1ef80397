"""The sentences of torch, NCCL, gloo and the system that are evidence, in the versions 2.11 to 2.15."""

from __future__ import annotations

import re

__all__ = ["FOLLOWS", "QUICK", "SENTENCES", "WAITS"]

# kind, what the text has, and the group that is its key
SENTENCES = [
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("watchdog", r"Watchdog caught collective operation timeout: WorkNCCL\((.*?)\)"),
        ("watchdog", r"\[TC\]\[rank=\d+\]\[name=([^\]]*)\] Operation timed out after \d+ ms"),
        ("watchdog", r"failure detected by watchdog at work sequence id: (\d+)"),
        ("named", r"(Detected mismatch between collectives on ranks|Ranks? [\d, ]+ failed to pass monitoredBarrier)"),
        ("gloo", r"(Received data size doesn't match expected size)"),
        ("gloo", r"(Connection closed by peer|Connection reset by peer)"),
        ("gloo", r"(Gloo connectFullMesh failed)"),
        ("gloo", r"(Timed out waiting \d+ms for (?:send|recv) operation)"),
        ("store", r"wait timeout after \d+ms, keys: (.+)"),
        ("memory", r"(CUDA out of memory|OutOfMemoryError|oom-kill|Out of memory: Killed)"),
        ("memory", r"(DefaultCPUAllocator: can't allocate)"),
        ("abort", r"(Fatal Python error: .*|terminate called .*)"),
        ("limit", r"(torch\._dynamo hit config\.(?:recompile|cache_size|accumulated_\w+)_?limit.*)"),
        ("begin", r"Step 1: torchdynamo start tracing (.+)|Step 2: calling compiler function ()"),
        ("traced", r"Step 1: torchdynamo done tracing ()"),
        ("end", r"Step 2: done compiler function ()|put_code_state()"),
        ("hit", r"(?:fx graph|AOTAutograd) cache hit for key (\S+)"),
        ("miss", r"(?:fx graph|AOTAutograd) cache miss for key (\S+)"),
        ("stranger", r"Running (\w+) on global rank \d+ which does not belong to the given group"),
        ("outside", r"(Received \d+ death signal, shutting down workers|slurmstepd: error: \*\*\* .* CANCELLED AT .*)"),
        ("process", r"Sending process (\d+) closing signal"),
        ("break", r"Graph break (?:in user code at|from user code at:?|\(.*\):?) ?(.*)"),
    )
]  # fmt: skip
QUICK = re.compile(
    r"atchdog|\[TC\]|Received data|Connection |Timed out|emory|oom-kill|Fatal|terminate|hit config|Step [12]|put_code"
    r"|cache (?:hit|miss)|Graph break|Recompiling|allocate|wait timeout|connectFullMesh|what\(\)|does not belong"
    r"|death signal|CANCELLED|closing signal|Detected mismatch|failed to pass"
)
# errors that follow from the fault of another rank or of the launcher
FOLLOWS = re.compile(
    r"DistBackendError|ChildFailedError|SignalException|KeyboardInterrupt|SystemExit|DistNetworkError|DistStoreError"
    r"|NCCL|gloo|TCPStore|Broken pipe|monitoredBarrier|ProcessRaisedException|ProcessExitedException|wait timeout"
    r"|connectFullMesh"
)
WAITS = re.compile(r"Timed out waiting|Watchdog caught|Operation timed out|failure detected by watchdog")
