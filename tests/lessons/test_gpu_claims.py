"""The checks that need GPUs: what of them can be tried without one, and all of them where there is one."""

from __future__ import annotations

import pickle
import socket
import types

import pytest

from labkit import hardware, torch_compat
from labkit.lessons.groups.claims.nccl import identity
from labkit.study import ledger
from labkit.study.catalog import CHECKS
from labkit.study.checks import Bench
from labkit.study.claims import load

CLAIMS = load()
NEEDY = tuple(row for row in CLAIMS.rows if row.needs and row.check)
SECRET = bytes(range(1, 9))


def unique_id(family: int, address: str) -> bytes:
    """As NCCL lays it out: the secret, then a sockaddr_in or a sockaddr_in6, then zeros."""
    port, flow = (40000).to_bytes(2, "big"), bytes(4 if family == socket.AF_INET6 else 0)
    told = family.to_bytes(2, "little") + port + flow + socket.inet_pton(family, address)
    return (SECRET + told).ljust(128, b"\0")


@pytest.mark.parametrize(
    ("family", "address", "ours"),
    [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "192.0.2.77", False),  # an address for documents: nobody has it
        (socket.AF_INET6, "2001:db8::1", False),
    ],
)
def test_an_id_is_read(family, address, ours):
    found = identity(unique_id(family, address))
    assert found == {"bytes": 128, "secret": SECRET.hex(), "family": family.name, "of_this_host": ours}


def test_what_is_no_id_names_no_host():
    assert identity(bytes(128)) == {"bytes": 128, "secret": "0" * 16, "family": "0", "of_this_host": False}


@pytest.mark.skipif(bool(hardware.gpus()), reason="there is a GPU here")
def test_without_a_gpu_no_rank_is_started_and_the_row_says_what_it_needs():
    with Bench() as bench, pytest.raises(ValueError, match="asked for, but there is no GPU here"):
        bench.on_gpus(print)
    lines = ledger.run(CLAIMS, [row for row in NEEDY if not row.read]).lines
    assert {line.status for line in lines} == {"cannot tell here"}
    assert {line.missing for line in lines} == {
        "needs a GPU",
        "needs 2 GPUs",
        "needs 2 GPUs joined by NVLink",
    }


def test_every_row_that_needs_a_gpu_has_a_check_of_its_own():
    both = {"ntd.handshake.exchange", "ntd.handshake.others-get-the-id"}  # the two ends of one meeting
    own = [row for row in NEEDY if row.id not in both]
    assert len(own) == len({row.check for row in own}) > 20 and len(NEEDY) == len(own) + len(both)
    assert {row.check for row in NEEDY} <= set(CHECKS)


def test_the_record_of_collectives_is_torchs_two_recorders_in_one(monkeypatch):
    def dump(*entries):
        return lambda *_: pickle.dumps({"entries": list(entries)})

    def entry(name, time):
        return {"profiling_name": name, "time_created_ns": time, "pg_id": 0}

    both = types.SimpleNamespace(
        _dump_fr_trace=dump(entry("gloo:barrier", 3), entry("nccl:barrier", 2)),
        _dump_nccl_trace=dump(entry("nccl:all_reduce", 1), entry("nccl:barrier", 2)),
    )
    monkeypatch.setattr("labkit.torch_compat.groups.require", lambda name: both)
    names = [found["profiling_name"] for found in torch_compat.flight_record()]
    assert names == ["nccl:all_reduce", "nccl:barrier", "gloo:barrier"]
    del both._dump_fr_trace, both._dump_nccl_trace
    assert torch_compat.flight_record() == []


@pytest.mark.gpu
@pytest.mark.skipif(not hardware.gpus(), reason="needs at least one NVIDIA GPU: none is visible here")
def test_where_there_are_gpus_every_row_that_they_carry_is_told():
    count = len(hardware.gpus())
    rows = [row for row in NEEDY if not ledger.needs_no_run(row, count)]
    found = ledger.run(CLAIMS, rows)
    failed = {
        line.claim.id: line.missing
        for line in found.lines
        if "failed" in line.missing or "judge" in line.missing
    }
    assert rows and not failed
