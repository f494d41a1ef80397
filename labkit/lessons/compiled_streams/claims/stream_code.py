"""Where Inductor fuses in its code for CUDA: written here where the package triton is installed, else as it is shipped.

The shipped code was written, not run, by the torch that it names, elsewhere: it is shown, and no claim holds by it.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import torch

from labkit.lessons.compiled_streams import inside
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, quietly, verdict

WITH, RUN = re.compile(r"^ *with (stream\d+|default_stream):"), re.compile(r"(triton_\w+)\.run\(")
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


@probe
def code(bench: Bench) -> Seen:
    """The kernels of some functions, the streams that they are launched on, and the stream operators between them."""
    text: dict[str, Any] = inside.inductor_text()
    found = {"shipped": text["label"], "of": text["torch"], "here": torch.__version__, "written": False}
    if importlib.util.find_spec("triton"):
        text = quietly(lambda: inside.inductor_code(*FUNCTIONS, streams=2))
        found["written"] = True
    names = [fn.__name__ for fn in FUNCTIONS if fn.__name__ in text]
    return {**found, "kernels": {name: kernels(text[name]) for name in names}}


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


def _judged(seen: Seen, holds: bool | None, *names: str) -> Result:
    said = "; ".join(
        f"{n}: {', '.join(f'{k} on {s}' for s, k in _does(seen, n))}" for n in names if _does(seen, n)
    )
    said += f" ({'written here' if seen['written'] else seen['shipped']})"
    if not seen["written"]:
        return cannot_tell("the package triton, for code that this torch writes", said)
    return verdict(holds, said) if holds is not None else cannot_tell("code that names streams", said)


def _does(seen: Seen, name: str) -> list[tuple[str, str]]:
    """(stream, functions or name) of each launch of a function; nothing where its code was not written."""
    rows = seen["kernels"].get(name, [])
    return [(stream, does or kernel) for stream, kernel, does in rows if kernel.startswith("triton_")]


def _streams(seen: Seen) -> bool:
    return any(stream.startswith("stream") for stream, _ in _does(seen, "one_stream"))


@judging(code)
def same_stream_fuses(seen: Seen) -> Result:
    """On one side stream element-wise operators are one kernel, as without a stream, and so are they with a sum."""
    kernels = [_does(seen, name) for name in ("one_stream", "reduced", "plain")]
    fused = [[does for _, does in one] for one in kernels] == [["cos sin"], ["sin sum"], ["cos sin tanh"]]
    return _judged(seen, fused if _streams(seen) else None, "one_stream", "reduced")


@judging(code)
def an_event_stops_fusion(seen: Seen) -> Result:
    """What stands before a record or a wait and behind it, on one stream, is not in one kernel; without it, it is."""
    without = [does for _, does in _does(seen, "one_stream")] == ["cos sin"]
    found = [[does for _, does in _does(seen, name)] for name in ("event_between", "wait_between")]
    apart = all({"sin", "cos", "tanh"} == {*one} for one in found)
    return _judged(seen, apart and without, "one_stream", "event_between", "wait_between")


@judging(code)
def replacements_keep_their_stream(seen: Seen) -> Result:
    """Two softmaxes that were written on a side stream are launched there, every kernel of them."""
    streams = [stream for stream, _ in _does(seen, "softmaxed")]
    return _judged(seen, {*streams} == {"stream1"} if _streams(seen) else None, "softmaxed")


@judging(code)
def more_kernels(seen: Seen) -> Result:
    """The same arithmetic over two streams takes more launches than without."""
    few, many = (len(_does(seen, name)) for name in ("plain", "streamed"))
    return _judged(seen, many > few > 0, "plain", "streamed")
