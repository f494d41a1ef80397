"""What a job did not leave, and the setting that leaves it next time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oddrank.postmortem.material import Material
from oddrank.postmortem.sentences import rank_names
from oddrank.postmortem.staleness import age

__all__ = ["gaps"]

RECORD = (
    "no flight record: set TORCH_FR_BUFFER_SIZE=2000, TORCH_FR_DUMP_TEMP_FILE=/shared/trace_ and"
    " TORCH_FR_DUMP_ON_TIMEOUT=1 (before 2.15: TORCH_NCCL_DUMP_ON_TIMEOUT=1); over gloo the program has to write"
    " what _dump_fr_trace of torch's distributed_c10d returns"
)
MESSAGES = "send and recv have no common number: over gloo, and where the oldest calls are lost, they were not compared"
OTHERS = (
    (
        "stack",
        ("stack",),
        "py-spy dump --pid PID of each rank, or faulthandler.register(signal.SIGTERM, chain=True) in the program",
    ),
    (
        "log of compiles",
        ("begin", "end", "recompile", "graph"),
        "TORCH_LOGS=recompiles,graph_breaks,dynamo, or TORCH_TRACE=/shared/traces",
    ),
)


def gaps(material: Material, ranks: list[int], asked: list[int], well: bool) -> Iterator[str]:
    """Say what is missing.

    Args:
        material: what was read.
        ranks: of the job.
        asked: the ranks of the verdict, whose stacks and logs are missed most.
        well: whether nothing is wrong, so that neither is missed.
    """
    attempts = sorted({found for file in material.files for found in re.findall(r"attempt_\d+", file.name)})
    if len(attempts) > 1:
        yield f"files of several starts are read as one ({', '.join(attempts[:6])}): name the folder of one"
    for rank, dump in sorted(material.stale.items())[:8]:
        last = f"ends with {dump.calls[-1].phrase}" if dump.calls else "has no call"
        why = "the others' go on: it is of an earlier moment, or the rank made no call after that"
        if rank in material.why:
            text, cite = material.why[rank]
            older = age(material, rank, cite)
            why = f"{text} [{cite}]: it is of an earlier moment{f' ({older})' if older else ''}"
        yield f"the record of rank {rank}, {dump.file}, {last}, and {why}; it is compared with none"
    without = [rank for rank in ranks if rank not in material.dumps and rank not in material.stale]
    if not (material.dumps or material.stale):
        yield RECORD
    elif without:
        yield f"no flight record of {rank_names(without)}: what they called is not known"
    dumps = material.dumps.values()
    calls = [call for dump in dumps for call in dump.calls if call.group not in dump.members]
    if groups := sorted({call.of for call in calls if call.desc != "default_pg"}):
        who = ", ".join(groups[:6])
        yield f"the members of {who} are not in gloo's records: a rank that never called there is not missed"
    lost = [dump for dump in dumps if dump.wrapped or dump.backend == "gloo"]
    if any(call.p2p for dump in lost for call in dump.calls):
        yield MESSAGES
    for kind, names, way in OTHERS:
        lack = [rank for rank in (asked or ranks) if not material.of(rank, *names)]
        if lack and not well:
            yield f"no {kind} of {rank_names(lack)}: {way}"
