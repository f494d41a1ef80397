"""The review of a module: each rule finds what breaks it, and says nothing of what keeps it."""

from __future__ import annotations

import importlib
import sys
import textwrap

import pytest

from labkit import cli, contract
from labkit.contract.review import FOUND, MISSING, NOTHING, RULES, USED

HEAD = """
import os, logging
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from labkit.contract import *
LOG = logging.getLogger(__name__)
"""

# rule: source that breaks it with the line's text, source that keeps it
CASES = {
    "divergence": [
        ("def f(x):\n    if dist.get_rank() == 0:\n        dist.all_reduce(x)", "dist.all_reduce(x)"),
        ("def f(x, rank):\n    if rank:\n        dist.broadcast(\n            x, 0\n        )", "dist.broadcast(x, 0)"),
        ("def f(x):\n    if os.environ.get('A'):\n        dist.broadcast(x, 0)", "dist.broadcast(x, 0)"),
        ("def f(self, x):\n    if self.rank:\n        return x\n    dist.all_reduce(x)", "dist.all_reduce(x)"),
        ("def f(x, rank):\n    for _ in x:\n        while rank:\n            dist.all_reduce(x)", "dist.all_reduce(x)"),
        ("def f(x):\n    dist.all_reduce(x)\n    if dist.get_rank() == 0:\n        print(x)", ""),
        ("def f(x):\n    def g():\n        dist.all_reduce(x)\n    if dist.get_rank():\n        return", ""),
    ],
    "fragmentation": [
        ("@torch.compiler.disable\ndef f(x):\n    dist.all_reduce(x)", "dist.all_reduce(x)"),
        ("@torch._dynamo.disable(recursive=False)\ndef f(x):\n    dist.all_reduce(x)", "dist.all_reduce(x)"),
        ("def f(x):\n    dist.all_reduce(x)\ng = torch.compiler.disable(f)", "dist.all_reduce(x)"),
        ("@torch.compiler.disable\ndef f(x):\n    return x\ndef g(x):\n    dist.all_reduce(x)", ""),
    ],
    "spmd": [
        ("def f(x):\n    if x.sum() > 0:\n        x = funcol.all_reduce(x)", "x = funcol.all_reduce(x)"),
        ("def f(x, n):\n    if n > 0:\n        dist.all_reduce(x)", ""),
    ],
    "gate": [
        ("def f(x):\n    return funcol.all_reduce(x, 'sum', g)", "return funcol.all_reduce(x, 'sum', g)"),
        ("def f(x):\n    if torch.compiler.is_compiling():\n        return funcol.all_reduce(x, 'sum', g)", ""),
        ("@torch.compile\ndef f(x):\n    return funcol.all_reduce(x, 'sum', g)", ""),
    ],
    "pure": [
        ("@torch.compile\ndef f(x):\n    print(x)", "print(x)"),
        ("def inner(x):\n    LOG.info('a')\ndef f(x):\n    return inner(x)\ng = torch.compile(f)", "LOG.info('a')"),
        ("@torch.compile()\ndef f(x):\n    dist.barrier(async_op=True)", "dist.barrier(async_op=True)"),
        ("def f(x):\n    print(x)", ""),
        ("@torch.compiler.disable\ndef inner(x):\n    print(x)\n@torch.compile\ndef f(x):\n    inner(x)", ""),
    ],
    "mutation": [
        ("def f(m, w):\n    m.weight = w", "m.weight = w"),
        ("def f(m, w):\n    m.weight.data.copy_(w)", "m.weight.data.copy_(w)"),
        ("def f(m, s):\n    m.load_state_dict(s)", "m.load_state_dict(s)"),
        ("class A:\n    def __init__(self, w):\n        self.weight = w", ""),
        ("def f(m, s, w):\n    w = Fingerprints(e, s)\n    m.load_state_dict(s)\n    w.renew()", ""),
    ],
}  # fmt: skip


def reviewed(tmp_path, source: str) -> contract.Review:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + textwrap.dedent(source) + "\n")
    return contract.review(path)


@pytest.mark.parametrize(
    ("rule", "source", "line"), [(rule, *case) for rule, cases in CASES.items() for case in cases]
)
def test_a_rule_finds_what_breaks_it_and_nothing_else(rule, source, line, tmp_path):
    found = reviewed(tmp_path, source)[rule]
    assert [seen.text for seen in found.places] == ([line] if line else [])
    assert found.status == (FOUND if line else USED if "Fingerprints" in source else NOTHING)


@pytest.mark.parametrize(
    ("rule", "uses"),
    [
        ("crash", "dog = Watchdog(store)"),
        ("crash", "dist.init_process_group(timeout=t)"),
        ("warmup", "warm_up(exchange, call)"),
        ("canary", "torch.compile(f, fullgraph=True)"),
        ("canary", "with compile_health() as h:\n    pass"),
        ("phases", "announce(exchange, plan)"),
        ("preflight", "send(preflight({}))"),
    ],
)
def test_a_part_is_used_or_not_seen(rule, uses, tmp_path):
    assert reviewed(tmp_path, uses)[rule].status == USED
    assert reviewed(tmp_path, "x = 1")[rule].status == MISSING


def test_every_row_says_what_it_does_not_check():
    assert len(RULES) == 14 and len({rule.name for rule in RULES}) == 14
    assert all(rule.checks and rule.does_not for rule in RULES)
    assert [
        sum(rule.where == where for rule in RULES) for where in dict.fromkeys(r.where for r in RULES)
    ] == [5, 5, 4]


HIDDEN = """
import torch, torch.distributed as dist


def inplace(x):
    dist.all_reduce(x)
    return x


disabled = torch.compiler.disable(inplace)
"""


@pytest.fixture
def hidden(tmp_path, monkeypatch):
    """An imported module whose all-reduce is hidden from the compiler."""
    (tmp_path / "reviewed_module.py").write_text(HIDDEN)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("reviewed_module")
    del sys.modules["reviewed_module"]


def test_a_run_adds_what_was_compiled(hidden):
    import torch

    from labkit.torch_compat import dynamo_reset

    def breaks(x):
        y = x + 1
        print("", end="")
        return y * 2

    def whole(x):
        return x * 2

    for function, status, says in ((whole, USED, "ran: 1 graphs"), (breaks, FOUND, "first break: ")):
        dynamo_reset()
        compiled = torch.compile(function, backend="eager")
        found = contract.review(hidden, lambda: compiled(torch.ones(2)))  # noqa: B023
        assert found["canary"].status == status and says in found["canary"].row()["where"]


def test_an_imported_module_and_a_file_from_the_command_line(hidden, capsys):
    found = contract.review(hidden)
    assert found["fragmentation"].status == FOUND and found["fragmentation"].places[0].function == "inplace"
    assert len(found.rows()) == 14 and "does not check: " in str(found)
    assert cli.main(["review", hidden.__file__]) == 0
    assert "no graph fragmentation by collectives" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"def f(:\n", "mine.py, line 1: not Python"),
        (b"import torch\nx = 1\0\n", "mine.py, line 2: not Python: it holds a NUL byte"),
        (b"x = '\xff'\n", "cannot read .*mine.py: invalid or missing encoding declaration"),
        (b"# coding: nonsense\n", "cannot read .*mine.py: unknown encoding: nonsense"),
        (b"x = " + b"-" * 60_000 + b"1\n", "mine.py is nested too deeply to be read"),
        (b"x = " + b"(1 + " * 90 + b"1" + b")" * 90 + b" + 1" * 20_000, "mine.py is nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(source, says, tmp_path):
    (tmp_path / "mine.py").write_bytes(source)
    with pytest.raises(ValueError, match=says):
        contract.review(tmp_path / "mine.py")


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbf" + "def f(x, größe):\n    if größe.rank:\n        dist.all_reduce(x)\n".encode(),
        "# coding: latin-1\ndef f(x, größe):\n    if größe.rank: dist.all_reduce(x)\n".encode("latin-1"),
        b"def f(x, self):\r\n    if self.rank:\r\n        dist.all_reduce(x)\r\n",
        b"r = '\\d'\ndef f(x, self):\n    if self.rank: dist.all_reduce(x)",
    ],
)
def test_a_file_is_read_as_python_reads_it(source, tmp_path, recwarn):
    (tmp_path / "mine.py").write_bytes(source)
    (place,) = contract.review(tmp_path / "mine.py")["divergence"].places
    assert place.text.endswith("dist.all_reduce(x)") and not recwarn.list


def test_what_is_no_module_is_named(tmp_path):
    for path, says in (
        ("nothing.py", "cannot read nothing.py: No such file or directory"),
        (tmp_path, "it is a folder, not a file"),
    ):
        with pytest.raises(ValueError, match=says):
            contract.review(path)
    assert cli.main(["review", "nothing.py"]) == 2
    import sys

    with pytest.raises(ValueError, match="module 'sys' has no source file"):
        contract.review(sys)
