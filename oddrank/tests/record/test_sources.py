"""Functions are named as a reader knows them, and torch's reports shrink to a line, a place and hints."""

from __future__ import annotations

import importlib
import linecache
import sys

import pytest
import torch
from oddrank.record import payloads, record
from oddrank.record.guard_words import again
from oddrank.record.source import Sources

CELL = "/scratch/ipykernel_3/21.py"
SOURCE = """\
class Block:
    class Inner:
        def forward(self, x):
            return x

    @staticmethod
    def forward(x):
        def helper(y):
            return y
        return helper(x)

def forward(x):
    return x
"""
REPORT = f"""\
Graph break in user code at {CELL}:4
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Skip calling `torch.compiler.disable()`d function
  Explanation: Skip calling function `<function gate at 0x7f210ea3fce0>` since it was wrapped
  Hint: Remove the `torch.compiler.disable` call

  Developer debug context: <function gate at 0x7f210ea3fce0>

Stack variable source attribution:
  DictValuesIterator() originated from:
  File "/usr/lib/python3/container.py", line 410
            return iter(self._modules.values())

User code traceback:
  File "{CELL}", line 9, in forward
    return helper(x)
  File "{CELL}", line 4, in forward
    return x
  File "<frozen runpy>", line 1, in run
    pass
"""
LOOP = "graph break in loop\n  Explanation: skipping\n\nUser code traceback:"
ANOTHER = "*** While handling this graph break, another graph break occurred: ***"


@pytest.mark.parametrize(
    ("line", "name", "qualified"),
    [
        (3, "forward", "Block.Inner.forward"),
        (6, "forward", "Block.forward"),  # the decorator's line, as code objects have it
        (8, "helper", "helper"),
        (12, "forward", "forward"),
    ],
)
def test_methods_are_named_with_their_class_and_functions_alone(line, name, qualified):
    linecache.cache[CELL] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), CELL)
    linecache.cache["magic"] = (1, None, ["%%ranks\n", "x = !ls\n"], "magic")
    assert Sources().qualified(CELL, line, name) == qualified
    assert (
        Sources().qualified("/no/such/file.py", line, name) == Sources().qualified("magic", 1, name) == name
    )


def test_a_break_is_a_line_with_its_hints_and_the_programs_stack():
    said = payloads.report(REPORT)
    assert said.title == "Skip calling `torch.compiler.disable()`d function gate"
    assert said.hints == ("Remove the `torch.compiler.disable` call",) and "since it was wrapped" in said.why
    assert [frame[:2] for frame in said.frames] == [(CELL, 9), (CELL, 4), ("<frozen runpy>", 1)]
    assert "0x7f" not in said.text and "container.py" not in said.text and CELL not in said.text
    both = payloads.report(REPORT.replace("User code traceback:", f"{ANOTHER}\n\n{LOOP}"))
    assert both.after == ("graph break in loop", "skipping") and both.title == said.title


def test_a_report_of_another_shape_still_gives_its_first_line():
    odd = payloads.report("Graph break in user code at /home/ada/m.py:7\nGraph Break Reason: odd thing\n")
    assert odd.title == "odd thing" and payloads.report("").frames == ()


def test_failed_guards_have_no_address_and_say_what_changes():
    guard = "0/4: ___check_type_id(n, 140224848297184), type=<class 'int'>  # if n:  # el/x.py:9 in f (HINT)"
    newest, older = payloads.failed_guards(f'["{guard}", "0/3: n == 2"]')
    assert newest.startswith("___check_type_id(n), type=<class 'int'>") and older == "n == 2"
    assert payloads.failed_guards("0/1: tensor 'x' rank mismatch. expected 1, actual 2") == [
        "tensor 'x' rank mismatch. expected 1, actual 2"
    ]
    assert again(["n == 3", "n == 2"]) == "`n` changes (2 -> 3)"


def test_a_file_that_was_edited_between_two_records_is_read_again(tmp_path, monkeypatch):
    file = tmp_path / "edited.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # its times are whole seconds
    found = []
    for text in (
        "class A:\n    def f(self, x):\n        return x + 1\n",
        "class B:\n    def f(self, x):\n        return x + 2\n",
    ):
        file.write_text(text)
        sys.modules.pop("edited", None)
        importlib.invalidate_caches()
        made = next(one for name, one in vars(importlib.import_module("edited")).items() if name in "AB")()
        run = torch.compile(made.f, backend="eager")
        with record() as rec:
            run(torch.ones(2))
        found += [one.func for one in rec.compiles if one.during]
    assert found == ["A.f", "B.f"]
