"""Bad stream programs get an error that names the op and the rule, where they are written down."""

from __future__ import annotations

import math

import pytest

from course.shared.streams import Program, StreamError, ops


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda p: p.wait("e", "sied"), "op 1, wait('e', 'sied'): there is no stream 'sied'; there is default, side"),
        (lambda p: p.record("e", "x"), "op 1, record('e', 'x'): there is no stream 'x'"),
        (lambda p: p.kernel("k", 1, on="x"), "op 1, kernel 'k' on 'x': there is no stream 'x'"),
        (lambda p: p.wait_stream("x"), "there is no stream 'x'"),
        (lambda p: p.wait_stream("default"), "waits for itself waits for nothing"),
        (lambda p: p.synchronize("x"), "there is no stream 'x'"),
        (lambda p: p.record_stream("x", "side"), "op 1, record_stream('x', 'side'): 'x' was never allocated"),
        (lambda p: p.kernel("k", -1), "op 1, kernel 'k' on 'default': a duration is a number of 0 or more, got -1"),
        (lambda p: p.kernel("k", math.nan), "a duration is a number of 0 or more, got nan"),
        (lambda p: p.kernel("k", "long"), "a duration is a number of 0 or more, got 'long'"),
        (lambda p: p.kernel("k", True), "a duration is a number of 0 or more, got True"),
        (lambda p: p.kernel("k", 1, kind="io"), "kind 'io' is not one of compute, collective, copy"),
        (lambda p: p.alloc("x", 0), "a size is a number above 0, got 0"),
        (lambda p: p.free("x"), "op 1, free('x'): 'x' was never allocated"),
        (lambda p: (p.alloc("x"), p.free("x"), p.free("x")), "op 3, free('x'): 'x' was freed by op 2 already"),
        (lambda p: (p.alloc("x"), p.alloc("x")), "op 2, alloc('x', 'default', 1.0): 'x' is there since op 1"),
        (lambda p: (p.alloc("x"), p.free("x"), p.kernel("k", 1, reads="x")), "op 3, kernel 'k' on 'default': 'x' was"),
        (lambda p: Program(streams="side side"), "there are two streams named 'side'"),
        (lambda p: Program(streams=("",)), "a stream is called by a name, got ''"),
        (lambda p: p.wait(3), "its event must be a text, got 3"),
        (lambda p: p.record(""), "its event must be a text, got ''"),
        (lambda p: p.add("kernel"), "op 1: 'kernel' is no op of a stream program"),
        (lambda p: p.add(ops.Synchronize("world")), "an event, a stream or the device, not for 'world'"),
    ],
)  # fmt: skip
def test_a_bad_op_is_named_with_the_rule_it_breaks(wrong, words):
    with pytest.raises(StreamError) as caught:
        wrong(Program(streams="side"))
    assert words in str(caught.value)


def test_a_bad_op_is_not_in_the_program():
    p = Program()
    with pytest.raises(StreamError):
        p.kernel("k", -1)
    assert len(p) == 0


def test_a_freed_name_may_be_given_again():
    p = Program()
    for _ in range(2):
        p.alloc("x")
        p.kernel("k", 1, writes="x")
        p.free("x")
    assert len(p) == 6
