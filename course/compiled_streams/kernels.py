"""Functions of two streams, one question each about where Inductor fuses, and the launches in its code for CUDA."""

from __future__ import annotations

import re

import torch

__all__ = ["FUNCTIONS", "kernels"]

WITH, RUN = (
    re.compile(r"^ *with (?:torch\.cuda\.stream\()?(stream\d+|default_stream)\)?:"),
    re.compile(r"(triton_\w+)\.run\("),
)
WRITTEN = re.compile(r"async_compile\.triton\('(\w+)', '{3}(.*?)'{3}", re.S)
DOES = re.compile(r"(?:tl_math|libdevice|tl)\.(sin|cos|tanh|sum)\(")


# --- what Inductor writes code of: one question each about where it fuses ---


def plain(x, one, two):  # type: ignore[no-untyped-def]
    """Without a stream: what fuses by itself."""
    a = x.sin() + 1
    b = a.cos() * 2
    c = a.tanh() - 3
    return b + c


def streamed(x, one, two):  # type: ignore[no-untyped-def]
    """The same over two streams, handed over by an event."""
    a = x.sin() + 1
    e = torch.Event()
    e.record()
    with one:
        e.wait()
        b = a.cos() * 2
    with two:
        e.wait()
        c = a.tanh() - 3
    here = torch.accelerator.current_stream()
    here.wait_stream(one)
    here.wait_stream(two)
    return b + c


def one_stream(x, one, two):  # type: ignore[no-untyped-def]
    """Four operators in a row on one side stream."""
    with one:
        a = x.sin() + 1
        return a.cos() * 2


def apart(x, one, two):  # type: ignore[no-untyped-def]
    """The same four, two and two on two streams."""
    with one:
        a = x.sin() + 1
    with two:
        return a.cos() * 2


def event_between(x, one, two):  # type: ignore[no-untyped-def]
    """The same four on one stream, with an event recorded between them for another stream."""
    with one:
        a = x.sin() + 1
        e = torch.Event()
        e.record()
        b = a.cos() * 2
    with two:
        e.wait()
        c = a.tanh() - 3
    return b, c


def wait_between(x, one, two):  # type: ignore[no-untyped-def]
    """The same four on one stream, which waits between them for an event of another stream."""
    with two:
        c = x.tanh() - 3
        e = torch.Event()
        e.record()
    with one:
        a = x.sin() + 1
        e.wait()
        b = a.cos() * 2
    return b, c


def reduced(x, one, two):  # type: ignore[no-untyped-def]
    """Two operators and the sum of what they make, on one side stream."""
    with one:
        return (x.sin() + 1).sum()


def reduced_apart(x, one, two):  # type: ignore[no-untyped-def]
    """The same two operators and their sum, on two streams."""
    with one:
        a = x.sin() + 1
    with two:
        return a.sum()


def softmaxed(x, one, two):  # type: ignore[no-untyped-def]
    """Two softmaxes in a row on one side stream, which one of Inductor's patterns replaces."""
    with one:
        y = torch.softmax(x.view(-1, 64) * 2, -1)
        return torch.softmax(y * 2 + 1, -1)


FUNCTIONS = (
    plain,
    streamed,
    one_stream,
    apart,
    event_between,
    wait_between,
    reduced,
    reduced_apart,
    softmaxed,
)


def kernels(text: str) -> list[list[str]]:
    """(stream, name, functions that it computes) of every launch, and (stream, operator, '') of events, in order."""
    does = {name: " ".join(sorted({*DOES.findall(body)})) for name, body in WRITTEN.findall(text)}
    stream, found = "no stream", []
    for line in text[text.index("def call(") :].splitlines():
        if entered := WITH.match(line):
            stream = entered[1]
        if launched := RUN.search(line):
            found.append([stream, launched[1], does.get(launched[1], "")])
        elif called := re.match(r" *torch\.ops\.streams\.(\w+)", line):
            found.append([stream, called[1], ""])
    return found
