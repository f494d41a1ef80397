"""Functions are shown as a reader knows them, and Dynamo's reports shrink to a line and a place."""

from __future__ import annotations

import linecache

from labkit import places
from labkit.records import reasons
from labkit.records.names import Names

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


def setup_module() -> None:
    linecache.cache[CELL] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), CELL)
    places.register(CELL, "In [5]")


def test_methods_are_named_with_their_class_and_functions_alone():
    names = Names()
    assert names.qualified(CELL, "forward", 3) == "Block.Inner.forward"
    assert (
        names.qualified(CELL, "forward", 6) == "Block.forward"
    )  # the decorator's line, as code objects have it
    assert names.qualified(CELL, "helper", 8) == "helper"
    assert names.qualified(CELL, "forward", 12) == "forward"
    assert names.qualified("/no/such/file.py", "forward", 3) == "forward"


def test_a_resumed_function_says_where_it_resumes():
    name, place = Names().function("torch_dynamo_resume_in_forward_at_9", CELL, 9)
    assert name == "Block.forward, resumed at In [5]:9"
    assert place == "In [5]:9 (Block.forward)"


def test_source_that_is_not_python_gives_the_bare_name():
    linecache.cache["magic"] = (1, None, ["%%ranks\n", "x = !ls\n"], "magic")
    assert Names().qualified("magic", "f", 1) == "f"


def test_a_break_is_one_line_at_the_innermost_place_of_the_readers_code():
    why = reasons.graph_break(REPORT, Names())
    assert why.reason == "Skip calling `torch.compiler.disable()`d function gate"
    assert why.place == "In [5]:4 (Block.Inner.forward)"
    assert "0x7f" not in why.text and "container.py" not in why.text and CELL not in why.text
    assert "In your code:\n  In [5]:9 (Block.forward)\n  In [5]:4 (Block.Inner.forward)\n" in why.text


def test_a_frame_given_up_names_both_breaks():
    text = REPORT.replace("Stack variable", "X", 1).replace(
        "User code traceback:",
        "*** While handling this graph break, another graph break occurred: ***\n\n"
        "graph break in loop\n  Explanation: skipping\n\nUser code traceback:",
    )
    reason = reasons.graph_break(text, Names()).reason
    assert reason == "graph break in loop, after: Skip calling `torch.compiler.disable()`d function gate"


def test_a_report_of_another_shape_still_gives_its_first_line():
    why = reasons.graph_break(
        "Graph break in user code at /home/ada/m.py:7\nGraph Break Reason: odd thing\n", Names()
    )
    assert (why.reason, why.place) == ("odd thing", "m.py:7")
    assert reasons.graph_break("", Names()).reason == ""


def test_a_failed_guard_without_a_stack_is_at_its_function():
    why = reasons.recompile(["0/1: tensor 'x' rank mismatch. expected 1, actual 2"], "In [5]:3 (f)", Names())
    assert (why.reason, why.place) == ("tensor 'x' rank mismatch. expected 1, actual 2", "In [5]:3 (f)")


def test_a_failed_guard_shows_where_the_value_is_used_and_no_address():
    guard = (
        "0/4: ___check_type_id(n, 140224848297184), type=<class 'int'>  # if n:  # el/x.py:9 in f (HINT)\n"
        f'User stack trace:\n  File "{CELL}", line 9, in forward\n    return helper(x)'
    )
    why = reasons.recompile([guard, "0/3: n == 2"], "elsewhere", Names())
    assert why.reason == "___check_type_id(n), type=<class 'int'>"
    assert why.place == "In [5]:9 (Block.forward)"
    assert why.text == "0/4: ___check_type_id(n), type=<class 'int'>\n0/3: n == 2"
