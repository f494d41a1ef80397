"""Inductor's passes that move collectives: the order of its code before and after, and what the clock says."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from course.fsdp.declared import COMM_PASSES as ABOUT
from course.shared.harness import settled
from course.shared.options import whole
from labkit import torch_compat
from labkit.graphs import record
from labkit.ranks import Ranks, here
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance
from labkit.timing import check_rounds, compare, interleave, slowest

WAYS = ("default", "reorder_for_compute_comm_overlap alone", "raise_comms, sink_waits", "overlap scheduling")
DEFAULT, SWITCH, PASSES, SCHEDULING = WAYS
CALLS = re.compile(
    r"(all_gather_into_tensor(?:_out)?|reduce_scatter_tensor|wait_tensor|extern_kernels\.mm)(?=\.default\(|\()"
)
WORDS = {"extern_kernels.mm": "mm", "wait_tensor": "wait", "reduce_scatter_tensor": "reduce_scatter"}


def run(ranks: Ranks, *, width: int = 384, layers: int = 3, rounds: int = 11, talk: bool = False) -> Report:
    """Compile one function under each setting, read the order of calls, and time them in interleaved rounds.

    The function gathers a sharded weight, multiplies, and so on for `layers` weights, as FSDP does. Tables: `order`
    (way, calls, products between an all-gather and its wait, whether the result is right on every rank), `summary`
    (way and median, p10, p90 in ms), `samples` in seconds of every rank. A round takes as long as its slowest rank; the
    verdicts compare each way with the default; `talk` prints each as it is compiled. Raises ValueError for sizes that
    are not whole numbers above 0 or a width that the ranks do not divide, RankError when a rank fails.

    >>> from course.fsdp import comm_passes
    >>> comm_passes.run(None, layers=0)
    Traceback (most recent call last):
        ...
    ValueError: layers must be a whole number above 0, got 0
    """
    check_rounds(rounds)
    whole(width=width, layers=layers)
    if width % ranks.world_size:
        raise ValueError(f"width must be a multiple of the {ranks.world_size} ranks, got {width}")
    found = ranks.run(measure, width, layers, rounds, talk, timeout=300)
    settings = {"backend": ranks.backend, "device": ranks.device, "threads": ranks.threads}
    return _report(found, ranks.label, provenance(**settings, width=width, layers=layers))


def calls_of(code: str) -> list[str]:
    """The collectives, waits and products that Inductor's code calls, in order, by short names.

    >>> calls_of("def call(args): extern_kernels.mm(a, b); wait_tensor.default(c)")
    ['mm', 'wait']
    """
    found = CALLS.findall(code[code.index("def call(") :])
    return [WORDS.get(call, call.replace("_into_tensor", "").replace("_out", "")) for call in found]


def between(calls: list[str]) -> int:
    """How many products stand between an all-gather and its wait, over all of them, in the order of the code.

    >>> between(["all_gather", "mm", "wait", "mm"])
    1
    """
    open_at: list[int] = []
    found = 0
    for i, call in enumerate(calls):
        if call.startswith("all_gather"):
            open_at.append(i)
        elif call == "wait" and open_at:
            found += calls[open_at.pop(0) : i].count("mm")
    return found


def _report(found: Any, label: str, made: dict[str, Any]) -> Report:
    first = found[0]
    rows = [
        (way, " ".join(calls), between(calls), all(one["right"][way] for one in found))
        for way, calls in first["order"].items()
    ]
    order = pd.DataFrame(rows, columns=["way", "calls", "products between", "right"])
    each = {way: {rank: one["samples"][way] for rank, one in enumerate(found)} for way in first["samples"]}
    times = {way: slowest(way, samples) for way, samples in each.items()}
    summary = pd.DataFrame(
        [{"way": w, "ms": m.median * 1e3, "p10": m.p10 * 1e3, "p90": m.p90 * 1e3} for w, m in times.items()]
    )
    samples = pd.DataFrame(
        [
            {"rank": rank, "way": way, "round": i, "seconds": value}
            for rank, one in enumerate(found)
            for way, values in one["samples"].items()
            for i, value in enumerate(values)
        ]
    )
    verdicts = [compare(times[way], times[DEFAULT]) for way in WAYS[1:]]
    tables = {"order": order, "summary": summary, "samples": samples}
    return Report("comm_passes", ABOUT.title, label, tables, verdicts, made)


# --- on a rank ---


def _settings() -> dict[str, dict[str, Any]]:
    """The settings of Inductor behind each way; times of nodes are stated, so that all ranks choose alike."""
    passes = ["raise_comms", "sink_waits"]
    return {
        DEFAULT: {},
        SWITCH: {"reorder_for_compute_comm_overlap": True},
        PASSES: {
            "reorder_for_compute_comm_overlap": True,
            "reorder_for_compute_comm_overlap_passes": passes,
            "estimate_op_runtime": lambda node: 15.0 if "all_gather" in str(node.node) else 20.0,
        },
        SCHEDULING: torch_compat.overlap_scheduling(custom_runtime_estimation=_milliseconds),
    }


def _milliseconds(node: Any, override_size: Any = None) -> float:
    text = str(node.target)
    if "aten.mm" in text:
        return 20.0
    return 15.0 if "c10d" in text and "wait" not in text else 0.0


def measure(width: int, layers: int, rounds: int, talk: bool, inserted: bool = False) -> dict[str, Any]:
    """On a rank: the order of calls under each setting, whether results are right, and samples in seconds.

    With `inserted` no program calls a gather: the weights are DTensors, and each is replicated where it is used.
    """
    me, funcol = here(), torch_compat.funcol
    group = dist.group.WORLD
    size = dist.get_world_size()

    def gather_and_multiply(x: Any, weights: Any) -> Any:
        for weight in weights:
            x = x @ gather(weight)
        return x

    torch.manual_seed(0)
    x = torch.randn(width, width, device=me.device) / width**0.5
    full = [torch.randn(width, width, device=me.device) / width**0.5 for _ in range(layers)]
    weights: list[Any] = [w.chunk(size)[dist.get_rank()].clone() for w in full]

    def gather(weight: Any) -> Any:
        if inserted:
            return weight.redistribute(placements=[Replicate()]).to_local()
        return funcol.all_gather_tensor(weight, 0, group)

    if inserted:
        mesh = init_device_mesh(torch.device(me.device).type, (size,))
        weights = [DTensor.from_local(w, mesh, [Shard(0)], run_check=False) for w in weights]
    expected = x
    for weight in full:
        expected = expected @ weight
    ways: dict[str, Callable[[], Any]] = {}
    order, right = {}, {}
    with torch.no_grad(), torch_compat.stated_hardware():
        for number, (way, switched) in enumerate(_settings().items()):
            # a code object of its own: Dynamo keeps what it compiled by code object
            if talk and me.rank == 0:
                print(f"compiled: {way}")
            code = gather_and_multiply.__code__.replace(co_name=f"gather_and_multiply_{number}")
            own = types.FunctionType(code, globals(), code.co_name, None, gather_and_multiply.__closure__)
            with (
                quiet_stderr(),  # torch 2.11 warns of its own deprecated names
                torch_compat.no_compile_caches(),
                torch_compat.patched("inductor.config", **switched),
                record(stages=True) as rec,
            ):
                compiled = torch.compile(own, fullgraph=True)
                got = compiled(x, weights)
            order[way] = calls_of(rec.graphs.iloc[-1]["inductor_code"])
            right[way] = bool(torch.allclose(got, expected, atol=1e-4))
            ways[way] = settled(functools.partial(compiled, x, weights))
        samples = interleave(ways, rounds=rounds, barrier=dist.barrier)
    return {"order": order, "right": right, "samples": {way: list(m.samples) for way, m in samples.items()}}
