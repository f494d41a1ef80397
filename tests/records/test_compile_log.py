"""The subscriber to torch's structured trace: it listens quietly, forgets in time, and disturbs nobody."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch

import labkit
from labkit import torch_compat
from labkit.records import compile_log, install
from labkit.records.compile_log import CompileLog, compile_id


def said(frame: int, number: int = 0, **what) -> dict:
    return {"frame_id": frame, "frame_compile_id": number, "attempt": 0, **what}


def tell(log: CompileLog, frame: int, number: int = 0, graph: str = "x = a + b", **metrics) -> None:
    """What a compile says, from start to end."""
    records = [
        (said(frame, number, dynamo_start={"stack": [{"name": "f", "line": 3, "filename": 0}]}), None),
        (said(frame, number, dynamo_output_graph={"sizes": {}}), graph),
        (
            said(frame, number, compilation_metrics={"has_guarded_code": True, "co_name": "f", **metrics}),
            None,
        ),
    ]
    for metadata, payload in records:
        record = logging.LogRecord("torch.__trace", logging.DEBUG, "", 0, "", (), None)
        record.metadata, record.payload = metadata, payload
        log.handle(record)


def test_installing_twice_listens_once():
    log = install()
    assert install() is log
    assert torch_compat.trace_logger().handlers.count(log) == 1


@pytest.mark.slow
def test_the_first_compile_of_a_process_is_heard_and_nothing_is_printed():
    # torch's own handler leaves the list while the first record is handled, which would hide it from the next one
    code = """
import labkit.records, torch
log = labkit.records.install()
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
known = log.known()
print(len(known), known[0].id, known[0].begun, known[0].finished, known[0].ops, log.error or "read all")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "1 0/0 True True 1 read all"
    assert done.stderr == ""


@pytest.mark.slow
def test_torch_trace_still_writes_its_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TRACE", str(tmp_path))
    code = (
        "import labkit.records, torch\nlabkit.records.install()\n"
        "torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2))"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)
    logs = list(tmp_path.glob("dedicated_log_torch_trace_*.log"))
    assert len(logs) == 1 and "dynamo_output_graph" in logs[0].read_text()


def test_it_hears_compiles_again_after_torch_set_its_logs_up_anew():
    log = install()
    torch._logging.set_logs(dynamo=logging.ERROR)
    try:
        before = len(log.known())
        with labkit.record():
            torch.compile(lambda x: x - 1, backend="eager")(torch.ones(2))
        assert len(log.known()) == before + 1
    finally:
        torch._logging.set_logs()


def test_calling_compiled_code_writes_no_record(monkeypatch):
    run = torch.compile(lambda x: x.sin() + 1)
    run(torch.ones(3))
    heard = []
    monkeypatch.setattr(compile_log.install(), "emit", heard.append)
    for _ in range(5):
        run(torch.ones(3))
    assert heard == []


def test_listeners_hear_of_a_caches_answer_before_the_compile_ends():
    """A rank that hangs in its compile has said what its caches answered."""
    log, heard = CompileLog(), []
    log.listeners.append(lambda compile_: heard.append((compile_.cached, compile_.finished)))
    begin = said(0, dynamo_start={"stack": [{"name": "f", "line": 3, "filename": 0}]})
    answers = ("aotautograd_cache_miss", "fx_graph_cache_miss", "fx_graph_cache_hit")
    for metadata in (begin, *(said(0, artifact={"name": name}) for name in answers)):
        record = logging.LogRecord("torch.__trace", logging.DEBUG, "", 0, "", (), None)
        record.metadata, record.payload = metadata, None
        log.handle(record)
    assert heard == [(None, False), (False, False), (True, False)]


def test_only_the_last_compiles_are_remembered(monkeypatch):
    monkeypatch.setattr(compile_log, "MOST_COMPILES", 10)
    log = CompileLog()
    for frame in range(25):
        tell(log, frame)
    assert [c.id for c in log.known()] == [f"{frame}/0" for frame in range(15, 25)]


def test_code_is_dropped_before_names_and_counts_are(monkeypatch):
    monkeypatch.setattr(compile_log, "MOST_TEXT", 1000)
    log = CompileLog()
    for frame in range(10):
        tell(log, frame, graph="y" * 300, graph_op_count=4)
    kept = [bool(c.graph) for c in log.known()]
    assert kept == [False] * 7 + [True] * 3
    assert all(c.ops == 4 and c.digest for c in log.known())


def test_a_reset_starts_a_new_epoch_and_keeps_the_old_one():
    log = CompileLog()
    tell(log, 0, co_filename="a.py")
    tell(log, 1, co_filename="a.py")
    tell(log, 0, co_filename="b.py")
    assert [(c.epoch, c.id, c.filename) for c in log.known()] == [
        (0, "0/0", "a.py"),
        (0, "1/0", "a.py"),
        (1, "0/0", "b.py"),
    ]


def test_a_recompile_belongs_to_the_same_epoch():
    log = CompileLog()
    tell(log, 0)
    record = logging.LogRecord("torch.__trace", logging.DEBUG, "", 0, "", (), None)
    record.metadata = said(0, 1, artifact={"name": "recompile_reasons", "encoding": "json"})
    record.payload = "0/0: tensor 'x' size mismatch"
    log.handle(record)
    tell(log, 0, 1)
    assert [(c.epoch, c.id, c.reasons) for c in log.known()] == [
        (0, "0/0", []),
        (0, "0/1", ["0/0: tensor 'x' size mismatch"]),
    ]


def test_a_record_it_cannot_read_is_noted_and_breaks_nothing():
    log = CompileLog()
    tell(log, 0)
    record = logging.LogRecord("torch.__trace", logging.DEBUG, "", 0, "", (), None)
    record.metadata, record.payload = said(0, dynamo_output_graph={}), 42
    log.handle(record)
    assert log.error.startswith("TypeError")


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("a = b + c  # File: x.py:1", "a = b + c  # File: y.py:2", True),
        ('x: "f32[4]cuda:0"', 'x: "f32[4]cuda:1"', True),
        (
            "t = torch.ops.aten.full([4], 1, device = device(type='cuda', index=0))",
            "t = torch.ops.aten.full([4], 1, device = device(type='cuda', index=1))",
            True,
        ),
        (
            "t = torch.ops._c10d_functional.all_reduce(s, 'sum', '1')",
            "t = torch.ops._c10d_functional.all_reduce(s, 'sum', '2')",
            True,
        ),
        (
            "t = torch.ops._c10d_functional.all_reduce(s, 'sum', '1')",
            "t = torch.ops._c10d_functional.all_reduce(s, 'max', '1')",
            False,
        ),
        ("a = b + c", "a = b * c", False),
    ],
)
def test_a_digest_is_the_same_for_the_same_graph_on_another_rank(one, other, alike):
    digests = []
    for graph in (one, other):
        log = CompileLog()
        tell(log, 0, graph=graph)
        digests.append(log.known()[0].digest)
    assert (digests[0] == digests[1]) is alike


def test_ids_are_written_as_dynamo_writes_them():
    assert compile_id({"compiled_autograd_id": 2, "frame_id": 1, "frame_compile_id": 0}) == "!2/1/0"
    assert compile_id({"compiled_autograd_id": 2}) == "!2"
    assert compile_id({"str": ["x", 1]}) == ""
