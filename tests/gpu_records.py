"""Records for the checks that need GPUs, as the probes would give them there: see ledger_records.py."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

BOTH, OTHER, THIRD = (0, 1), "0a0a0a0a0a0a0a0a", "0b0b0b0b0b0b0b0b"


def an_id(secret: str, key: str, **more: Any) -> Record:
    return {"bytes": 128, "secret": secret, "family": "AF_INET", "of_this_host": True, "key": key, **more}


IDS = [an_id(OTHER, "default_pg/1/0"), an_id(THIRD, "default_pg/2/0")]


def made(rank: int, number: int, way: str = "P2P/CUMEM", size: int = 2) -> list[str]:
    head = f"host:7:9 [{rank}] NCCL INFO"
    return [
        f"{head} Channel 00/0 : {rank}[{rank}] -> {1 - rank}[{1 - rank}] via {way}",
        f"{head} ncclCommInitRankConfig comm 0x{number}{rank} rank {rank} nranks {size} cudaDev {rank} - Init COMPLETE",
    ]


def ended(rank: int) -> list[str]:
    return [
        f"host:7:9 [{rank}] NCCL INFO comm 0x1{rank} rank {rank} nranks 2 cudaDev {rank} - Abort COMPLETE"
    ]


def rank(number: int, **more: Any) -> Record:
    log = made(number, 1) + made(number, 2)
    return {
        "late": {"1": 1} if number == 1 else {"0": 0},
        "right": True,
        "identity": IDS,
        "log": {"before": [], "after": log, "destroyed": log + ended(number)},
    } | more


def ranks(**more: Any) -> Record:
    """Both ranks, with something else on each."""
    return {"ranks": [rank(number, **more) for number in BOTH]}


def log(number: int, **when: list[str]) -> Record:
    return {"log": rank(number)["log"] | when}


def span(stream: int, start: float, end: float) -> Record:
    return {"stream": stream, "start": start, "end": end}


def way(
    own: int = 20,
    fill: float = 20.1,
    start: float = 20.2,
    after: float = 20.5,
    host: float = 0.4,
    right: bool = True,
) -> Record:
    """One way of calling: what ran on which stream, from when to when (ms)."""
    return {
        "fill": span(7, 20.0, fill),
        "collective": span(own, start, 20.4),
        "after": span(7, after, after + 0.1),
        "host_ms": host,
        "right": right,
    }


ASYNC, UNWAITED, SYNC, FUNCTIONAL = (
    "async_op, waited",
    "async_op, waited late",
    "async_op=False",
    "functional",
)


def queues(threads: tuple[str, ...] = ("pt_nccl_watchdg",), **ways: Record) -> Record:
    named = {"waited": ASYNC, "unwaited": UNWAITED, "sync": SYNC, "functional": FUNCTIONAL}
    usual = {ASYNC: way(), UNWAITED: way(after=20.15), SYNC: way(), FUNCTIONAL: way()}
    changed = usual | {named[name]: one for name, one in ways.items()}
    return {"ranks": [{"ways": usual, "threads": list(threads)}, {"ways": changed, "threads": list(threads)}]}


def barriers(group: float = 300.0, store: float = 0.4) -> Record:
    times = [{"group": group, "store": store}, {"group": 301.0, "store": 300.0}]
    return {
        "ranks": [
            {kind: {"ms": ms, "late": bool(number)} for kind, ms in one.items()}
            for number, one in enumerate(times)
        ]
    }


def hidden(copy: float = 21.0, communication: float = 21.0) -> Record:
    alone = {"kernel": 20.0, "copy": 10.0, "communication": 8.0}
    return {"hidden": [alone | {"copy beside": copy, "communication beside": communication}] * 2}


def batches(
    late: float = 0.1, early: float = 0.0, right: bool = True, count: int = 4, stream: int = 20
) -> Record:
    """Forwards of 5 ms, each followed by a write, and communication of 1 ms that starts `late` behind it."""
    forward = [[5.0 * i, 5.0 * i + 4.9] for i in range(count)]
    write = [[5.0 * i + 4.9, 5.0 * i + 5.0] for i in range(count)]
    sent = [[end + late - early, end + late - early + 1.0] for _, end in write]
    one = {"right": right, "forward": forward, "write": write, "communication": sent}
    one["streams"] = {"communication": [stream], "write": [7], "forward": [7]}
    return {"ranks": [one, one]}


BASE: dict[str, Record] = {
    "nccl.communicators": {**ranks(), "nvlink": True},
    "nccl_streams.queues": queues(),
    "nccl_streams.barriers": barriers(),
    "cuda_streams.side_by_side": {
        "kernels": {"together_ms": {"two streams": 19.8, "one stream": 0.0}, "each_ms": 20.0}, **hidden(),
    },
    "cuda_streams.devices": {"done_after_ms": {"with a wait": 100.2, "without": 0.1}, "busy_ms": 100.0},
    "cuda_streams.two_streams_compiled": {"outcome": "faster", "ratio": 0.7, "label": "cuda · 1 gpu", "right": True},
    "cuda_handover.memory": {
        "caching": True,
        "synchronized": {"same_memory": True, "read": 1.0}, "not synchronized": {"same_memory": True, "read": 7.0},
    },
    "cuda_handover.microbatches": batches(),
    "stream_offload.measured": {
        "peak_mib": {"kept": 3000.0, "waits at the end": 2600.0},
        "steps": {"outcome": "slower", "ratio": 1.1, "low": 1.05, "high": 1.2, "label": "cuda · 1 gpu"},
    },
}  # fmt: skip
CASES: dict[str, list[Record]] = {
    "nccl.rank_zero_makes_an_id": [
        {},
        {"ranks": [rank(0, late={"0": 1}), rank(1)]},  # rank 1 made one, too
        {"ranks": [rank(0), rank(1, late={"1": 0})]},  # rank 0 made none while it was alone
        ranks(identity=IDS[:1]),
        ranks(identity=[an_id(OTHER, "a key", of_this_host=False), IDS[1]]),
    ],
    "nccl.rings_come_behind_the_store": [
        {},
        {"ranks": [rank(0), rank(1, **log(1, before=made(1, 1)))]},
        ranks(**log(0, after=[])),
        ranks(identity=[]),
    ],
    "stream_offload.the_peak_is_lower_and_the_step_longer": [
        {},
        {"peak_mib": {"waits at the end": 3000.0}},
        {"steps": {"outcome": "faster", "ratio": 0.9}},
        {"steps": {"outcome": "cannot tell", "high": 1.3}},
    ],
    "nccl.the_id_holds_address_and_key": [
        {},
        ranks(identity=[an_id(OTHER, "a", of_this_host=False), IDS[1]]),
        ranks(identity=[IDS[0], an_id(OTHER, "b")]),
        ranks(identity=[]),
    ],
    "nccl.the_id_goes_through_the_store": [
        {}, ranks(identity=[]), {"ranks": [rank(0), rank(1, identity=[an_id("00", "other"), IDS[1]])]},
        {"ranks": [rank(0, late={"0": 1}), rank(1)]}, {"ranks": [rank(0), rank(1, late={"1": 0})]},
    ],
    "nccl.all_connect": [
        {},
        {"ranks": [rank(0), rank(1, **log(1, after=made(1, 1, size=1)))]},
        {"ranks": [rank(0), rank(1, **log(1, after=made(1, 1)[1:]))]},
        {"ranks": [rank(0), rank(1, **log(1, after=[]))]},
        {"ranks": [rank(0), rank(1, **log(1, before=made(1, 1)))]},
        ranks(log={"before": [], "after": [line.replace("InitRank", "InitAll") for line in made(0, 1)]}),
    ],
    "nccl.the_group_owns_its_communicator": [
        {},
        {"ranks": [rank(0, **log(0, before=made(0, 1))), rank(1)]},
        {"ranks": [rank(0, **log(0, after=made(0, 1))), rank(1)]},
        {"ranks": [rank(0), rank(1, **log(1, destroyed=made(1, 1)))]},
    ],
    "nccl.nccl_moves_the_bytes": [
        {}, {"ranks": [rank(0), rank(1, right=False)]}, {"ranks": [rank(0), rank(1, **log(1, after=[]))]},
    ],
    "nccl.over_nvlink": [
        {"ranks": [rank(0), rank(1, **log(1, after=made(1, 1) + made(1, 2, "NET/IB/0/GDRDMA")))]},
        ranks(),
        {"nvlink": False},
        {"ranks": [rank(0), rank(1, **log(1, after=made(1, 1, "SHM/direct/direct")))]},
        ranks(log={"before": [], "after": [], "destroyed": []}),
    ],
    "nccl_streams.a_stream_of_its_own": [{}, queues(waited=way(own=7))],
    "nccl_streams.all_reduce_goes_there": [
        {}, queues(sync=way(own=7)), queues(functional=way(own=7)), queues(waited=way(own=7)),
    ],
    "nccl_streams.the_host_goes_on": [
        {}, queues(waited=way(host=20.3)), queues(waited=way(right=False)), queues(waited=way(own=7)),
    ],
    "nccl_streams.it_waits_for_the_data": [
        {}, queues(waited=way(start=19.0)), queues(waited=way(right=False)), queues(waited=way(own=7)),
    ],
    "nccl_streams.computation_waits_for_it": [
        {},
        queues(waited=way(after=20.3)),
        {"ranks": [{"ways": {ASYNC: way(), UNWAITED: way()}, "threads": []}] * 2},
    ],
    "nccl_streams.threads_streams_and_events": [
        {}, queues(threads=("pt_tcpstore_uv",)), queues(waited=way(own=7)), queues(waited=way(start=19.0)),
    ],
    "nccl_streams.a_barrier_waits_for_gpus": [{}, barriers(group=0.5), barriers(store=299.0)],
    "cuda_streams.kernels_run_together": [
        {},
        {"kernels": {"together_ms": {"two streams": 0.0}}},
        {"kernels": {"together_ms": {"one stream": 19.0}}},
    ],
    "cuda_streams.copies_and_communication_hide": [
        {}, hidden(copy=30.0), hidden(communication=28.0),
        {"hidden": [{"kernel": 20.0, "copy": 10.0, "copy beside": 21.0}]},
    ],
    "cuda_streams.streams_wait_across_devices": [
        {}, {"done_after_ms": {"with a wait": 0.2}}, {"done_after_ms": {"without": 100.1}},
    ],
    "cuda_streams.two_streams_can_be_faster": [
        {}, {"outcome": "slower"}, {"outcome": "cannot tell"}, {"right": False}, {"right": None},
    ],
    "cuda_handover.freed_memory_is_used_again": [
        {}, {"not synchronized": {"same_memory": False}}, {"not synchronized": {"read": 1.0}}, {"caching": False},
    ],
    "cuda_handover.synchronizing_first_is_safe": [
        {}, {"synchronized": {"read": 7.0}}, {"not synchronized": {"read": 1.0}}, {"caching": False},
        {"synchronized": {"same_memory": False}},
    ],
    "cuda_handover.communication_beside_the_next_forward": [
        {}, batches(late=5.0), batches(count=3),
    ],
    "cuda_handover.communication_starts_behind_its_own": [
        {}, batches(early=0.5), batches(right=False), batches(count=3), batches(stream=7),
    ],
}  # fmt: skip
