"""What Inductor writes for CUDA of functions with streams and events: written, never run (it takes triton)."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import tempfile

import torch
from torch._dynamo.output_graph import OutputGraph
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode

from labkit.torch_compat import pretend_h100, pretend_streams
from ledger.bench import Bench
from ledger.trial import CannotTell, NotThere, Seen, judge, part
from ledger.trials.stream_graphs import in_a_child, two_waiters

# --- programs of a vector and two streams ---


def plain(x, one, two):
    a = x.sin() + 1
    b = a.cos() * 2
    c = a.tanh() - 3
    return b + c


def one_stream(x, one, two):
    with one:
        a = x.sin() + 1
        return a.cos() * 2


def apart(x, one, two):
    with one:
        a = x.sin() + 1
    with two:
        return a.cos() * 2


def reduced(x, one, two):
    with one:
        return (x.sin() + 1).sum()


def reduced_apart(x, one, two):
    with one:
        a = x.sin() + 1
    with two:
        return a.sum()


def record_between(x, one, two):
    with one:
        a = x.sin() + 1
        done = torch.Event()
        done.record()
        b = a.cos() * 2
    with two:
        done.wait()
        c = a.tanh() - 3
    return b, c


def wait_between(x, one, two):
    with two:
        c = x.tanh() - 3
        done = torch.Event()
        done.record()
    with one:
        a = x.sin() + 1
        done.wait()
        b = a.cos() * 2
    return b, c


def other_waits(x, one, two):  # the stream that waits has nothing between
    a = x.sin() + 1
    done = torch.Event()
    done.record()
    with two:
        done.wait()
        c = a.tanh() - 3
    with one:
        done.wait()
        b = a.cos().sum()
    here = torch.accelerator.current_stream()
    here.wait_stream(two)
    here.wait_stream(one)
    return c * b


def tanh_does_not_wait(x, one, two):
    a = x.sin() + 1
    done = torch.Event()
    done.record()
    with one:
        done.wait()
        b = a.cos() * 2
    with two:
        c = a.tanh() - 3
    return b, c


def softmaxes(x, one, two):
    with one:
        y = torch.softmax(x.view(-1, 64) * 2, -1)
        return torch.softmax(y * 2 + 1, -1)


def softmaxes_apart(x, one, two):
    with one:
        y = torch.softmax(x.view(-1, 64) * 2, -1)
    with two:
        return torch.softmax(y * 2 + 1, -1)


PROGRAMS = (plain, two_waiters, other_waits, tanh_does_not_wait, one_stream, apart, reduced, reduced_apart)
PROGRAMS += (record_between, wait_between, softmaxes, softmaxes_apart)


# --- the code, and how it is read ---


def _write() -> dict[str, str]:
    stream, found = pretend_streams(), {}
    pretend_h100()

    def keep(source: str) -> None:
        found[program.__name__] = source
        raise RuntimeError("written, and not to be compiled")

    GraphLowering.save_output_code = staticmethod(keep)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for program in PROGRAMS:
            torch._dynamo.reset()
            sides = [stream(1), stream(2)]
            with (
                FakeTensorMode(allow_non_fake_inputs=True),
                torch._inductor.config.patch(fx_graph_cache=False),
            ):
                try:
                    torch.compile(program, fullgraph=True)(torch.empty(1024, device="cuda"), *sides)
                except Exception as error:  # it stops where the code would be compiled
                    if program.__name__ not in found:
                        found[program.__name__] = f"ERROR {type(error).__name__}: {error}"[:600]
    return found


@functools.cache
def everything() -> dict[str, str]:
    if importlib.util.find_spec("triton") is None:
        raise CannotTell("the package triton")
    if not hasattr(OutputGraph, "check_event_record_after_input_mutation"):  # as old as streams in graphs
        raise NotThere("this torch compiles no streams: it came with 2.12")
    return in_a_child(_write)


BLOCK = re.compile(r"^( *)with (?:torch\.cuda\.stream\()?(stream\d+|default_stream)\)?:")
KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '{3}(.*?)'{3}", re.S)
DOES = re.compile(r"(?:tl_math|libdevice|tl)\.(sin|cos|tanh|sum)\(")
NAMED = re.compile(r"(stream\d+) = \w+_by_index\((\d+)\)")


def steps(text: str) -> list[list]:
    """[stream, kernel, what it computes] of each launch and [stream, operator, its streams] of each event, in order."""
    if "def call(" not in text:
        return []
    does = {name: " ".join(sorted({*DOES.findall(body)})) for name, body in KERNEL.findall(text)}
    names = {"0": "default_stream"} | {index: name for name, index in NAMED.findall(text)}
    found, stream, depth = [], "no stream", 0
    for line in text[text.index("def call(") : text.index("def benchmark_compiled")].splitlines():
        if stream != "no stream" and line.strip() and len(line) - len(line.lstrip()) <= depth:
            stream = "no stream"
        if entered := BLOCK.match(line):
            depth, stream = len(entered[1]), entered[2]
        if launched := re.search(r"(triton_\w+)\.run\(", line):
            found.append([stream, "kernel", does.get(launched[1], "?")])
        elif called := re.match(r" *torch\.ops\.streams\.(\w+)(?:\.default)?\((.*)\)", line):
            indices = re.findall(r"\d+", called[2])
            if "event" in called[1]:
                indices = indices[1:]
            found.append([stream, called[1], " ".join(names.get(index, index) for index in indices)])
    return found


def code(*names: str):
    """A probe: the steps of these programs, in order, and those of a program without streams for control."""

    def probe(bench: Bench) -> Seen:
        texts = everything()
        return {
            "steps": [steps(texts[name]) for name in names],
            "errors": [texts[name] for name in names if texts[name].startswith("ERROR")],
            "control": steps(texts["plain"]),
            "blocks": steps(texts["two_waiters"]),
        }

    return probe


def launches(found):
    """What each program's kernels compute, with the stream that they are launched on."""
    if [row[1:] for row in found["control"]] != [["kernel", "cos sin tanh"]]:
        raise ValueError(f"the reader does not find the one kernel of its control, but {found['control']}")
    if not {"stream1", "stream2"} <= {row[0] for row in found["blocks"] if row[1] == "kernel"}:
        raise ValueError(f"the reader finds no kernel on two side streams in its control: {found['blocks']}")
    if found["errors"]:
        raise ValueError(found["errors"][0])
    return [[[row[0], row[2]] for row in one if row[1] == "kernel"] for one in found["steps"]]


@judge(code("apart", "reduced_apart", "two_waiters"), code("one_stream", "reduced", "plain"))
def no_fusion_across_streams(found):
    read = launches(found)
    streams = [len({stream for stream, _ in one}) for one in read]
    yield part("each in a block of its own stream", streams == [2, 2, 3], read)
    mixed = [does for one in read for _, does in one if " " in does]
    yield part("fuses no operators of different streams", not mixed, read)


@judge(code("one_stream", "reduced"), code("apart", "reduced_apart"))
def fusion_on_one_stream(found):
    read = launches(found)
    fused = [[does for _, does in one] for one in read] == [["cos sin"], ["sin sum"]]
    side = all(stream.startswith("stream") for one in read for stream, _ in one)
    yield part("are one kernel", fused and side, read)


@judge(code("record_between", "wait_between"), code("one_stream", "one_stream"))
def events_stop_fusion(found):
    read = launches(found)
    for words, one in zip(("across the record", "the wait of an event"), read, strict=True):
        yield part(words, sorted(does for _, does in one) == ["cos", "sin", "tanh"], one)


@judge(code("two_waiters"), code("one_stream"))
def streams_take_more_kernels(found):
    count, alone = len(launches(found)[0]), len(found["control"])
    yield part("more kernels", count > alone, f"{count} kernels over streams, {alone} without")


def waits(one):
    """For the cos and the tanh of a program: whether their stream waits for the event before they are launched."""
    for at, (stream, kind, does) in enumerate(one):
        if kind == "kernel" and does in ("cos", "tanh", "cos sum"):
            yield does, any(kind == "wait_event" and on == stream for _, kind, on in one[:at])


@judge(code("two_waiters", "other_waits"), code("tanh_does_not_wait", "tanh_does_not_wait"))
def launched_after_the_wait(found):
    launches(found)
    read = [list(waits(one)) for one in found["steps"]]
    late = all(len(one) == 2 and all(ok for _, ok in one) for one in read)
    order = [[f"{kind} {on or 'add'}" for _, kind, on in one] for one in found["steps"]]
    yield part("is launched after its stream's wait_event", late, "; ".join(", ".join(o) for o in order))


@judge(code("two_waiters", "other_waits"), code("tanh_does_not_wait", "tanh_does_not_wait"))
def wait_stream_after_the_kernels(found):
    launches(found)
    said, good = [], True
    for one in found["steps"]:
        there = [(at, on.split()[-1]) for at, (_, kind, on) in enumerate(one) if kind == "wait_stream"]
        last = max(i for i, (_, kind, _) in enumerate(one) if kind == "kernel")
        for at, of in there:
            kernels = [i for i, (stream, kind, _) in enumerate(one) if kind == "kernel" and stream == of]
            good = good and bool(kernels) and max(kernels) < at < last
        good = good and len(there) == 2
        said.append(", ".join(f"{kind} {on or 'last'}" for _, kind, on in one))
    yield part("after the kernels of the stream that it waits for", good, "; ".join(said))


@judge(code("softmaxes"), code("softmaxes_apart"))
def softmax_stays_on_its_stream(found):
    streams = [stream for stream, _ in launches(found)[0]]
    yield part("on that stream alone", {*streams} == {"stream1"}, f"kernels on {', '.join(streams)}")
