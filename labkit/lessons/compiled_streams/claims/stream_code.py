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


FUNCTIONS = (plain, streamed, one_stream, apart, event_between)


@probe
def code(bench: Bench) -> Seen:
    """The kernels, and the streams that they are launched on, of five functions of the same arithmetic."""
    names = [fn.__name__ for fn in FUNCTIONS]
    text: dict[str, Any] = inside.inductor_text()
    found = {"shipped": text["label"], "of": text["torch"], "here": torch.__version__, "written": False}
    if importlib.util.find_spec("triton"):
        text = quietly(lambda: inside.inductor_code(*FUNCTIONS, streams=2))
        found["written"] = True
    return {**found, "kernels": {name: kernels(text[name]) for name in names}}


def kernels(text: str) -> list[list[str]]:
    """(stream, name) of every launch, in order; the name of a kernel holds the operators that it fuses."""
    stream, found = "no stream", []
    for line in text[text.index("def call(") :].splitlines():
        if entered := WITH.match(line):
            stream = entered[1]
        if launched := RUN.search(line):
            found.append([stream, launched[1]])
    return found


def _judged(seen: Seen, holds: bool, *names: str) -> Result:
    each = [f"{name}: " + ", ".join(f"{k} on {s}" for s, k in seen["kernels"][name]) for name in names]
    where = "written here" if seen["written"] else seen["shipped"]
    if not seen["written"]:
        missing = "the package triton, for code that this torch writes"
        return cannot_tell(missing, f"{'; '.join(each)} ({where})")
    return verdict(holds, f"{'; '.join(each)} ({where})")


def _ops(kernel: str) -> set[str]:
    return set(kernel.split("_"))


@judging(code)
def same_stream_fuses(seen: Seen) -> Result:
    """Four operators in a row on one side stream are one kernel, as they are without a stream."""
    one, none = seen["kernels"]["one_stream"], seen["kernels"]["plain"]
    fused = len(one) == 1 and {"sin", "add", "cos", "mul"} <= _ops(one[0][1])
    return _judged(seen, fused and len(none) == 1, "one_stream")


@judging(code)
def other_streams_stay_apart(seen: Seen) -> Result:
    """No kernel holds work that was written for two streams."""
    apart, two = seen["kernels"]["apart"], seen["kernels"]["streamed"]
    streams = {stream for stream, _ in apart}
    mixed = [name for _, name in two if {"cos", "tanh"} <= _ops(name) or {"sin", "cos"} <= _ops(name)]
    return _judged(seen, len(apart) == len(streams) == 2 and not mixed, "apart", "streamed")


@judging(code)
def an_event_stops_fusion(seen: Seen) -> Result:
    """What stands before an event's record and what stands behind it, on one stream, are not in one kernel."""
    kernels = seen["kernels"]["event_between"]
    over = [name for _, name in kernels if {"sin", "cos"} <= _ops(name)]
    return _judged(seen, bool(kernels) and not over, "event_between")


@judging(code)
def more_kernels(seen: Seen) -> Result:
    """The same arithmetic over two streams takes more launches than without."""
    few, many = (len(seen["kernels"][name]) for name in ("plain", "streamed"))
    return _judged(seen, many > few > 0, "plain", "streamed")
