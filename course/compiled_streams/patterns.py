"""Stream patterns, one question each, and what this torch makes of them: the table of lesson 07, by version.

`python -m tools.recapture patterns` keeps what the torch that runs it makes of them.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

import torch

from course.compiled_streams.kernels import event_between, kernels, softmaxed
from course.compiled_streams.written import program_of, shortened, write
from course.shared.streams import simulate
from course.shared.streams.captured import as_data, compiled
from labkit import files, torch_compat
from labkit.ranks import Ranks

__all__ = ["CODE", "FILE", "QUESTIONS", "keep", "measure", "recorded"]

FILE = files.ours("data/captured/stream_patterns.json")
ORDERS = 100
SAFE, UNSAFE = "safe", "UNSAFE"


def hand_over(x, one, two):  # type: ignore[no-untyped-def]
    """An event hands a value over; an event hands the result back."""
    a = x @ x
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a @ x
        done.record()
    done.wait()
    return b + 1


def waits_for_streams(x, one, two):  # type: ignore[no-untyped-def]
    """The same with wait_stream."""
    a = x @ x
    here = torch.accelerator.current_stream()
    one.wait_stream(here)
    with one:
        b = a @ x
    here.wait_stream(one)
    return b + 1


def two_waiters(x, one, two):  # type: ignore[no-untyped-def]
    """Two streams wait for one event, and an event of each brings its result back."""
    a = x.sin()
    ready, first, second = torch.Event(), torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a.cos()
        first.record()
    with two:
        ready.wait()
        c = a.tanh()
        second.record()
    first.wait()
    second.wait()
    return b + c


def works_beside(x, one, two):  # type: ignore[no-untyped-def]
    """The default stream goes on with work of its own while the side stream reads `a`."""
    a = x @ x
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a @ x
        done.record()
    c = x.sin() @ x
    done.wait()
    return b + c


def works_beside_and_keeps(x, one, two):  # type: ignore[no-untyped-def]
    """The same, and `a` is returned, so its memory is not given to anything else."""
    a = x @ x
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a @ x
        done.record()
    c = x.sin() @ x
    done.wait()
    return b + c, a


def changes_and_records(x, one, two):  # type: ignore[no-untyped-def]
    """An event after a change of an input."""
    x.mul_(2)
    ready = torch.Event()
    ready.record()
    with one:
        ready.wait()
        return x + 1


def records_aside(x, one, two):  # type: ignore[no-untyped-def]
    """The same event on a stream that has waited for the change."""
    x.mul_(2)
    one.wait_stream(torch.accelerator.current_stream())
    with one:
        ready = torch.Event()
        ready.record()
        return x + 1, ready


def same_on_default(x, one, two):  # type: ignore[no-untyped-def]
    """Two products on the default stream."""
    a = x @ x
    return a @ x


def same_on_side(x, one, two):  # type: ignore[no-untyped-def]
    """The same, the second one on a side stream."""
    a = x @ x
    with one:
        return a @ x


CODE = (hand_over, waits_for_streams, two_waiters, works_beside, works_beside_and_keeps)
QUESTIONS = {
    "orders that the graph permits (one event)": "the graph",
    "one event, there and back": "the code",
    "wait_stream, there and back": "the code",
    "two streams wait for one event": "the code",
    "other work beside the side stream": "the code",
    "the same, and the shared value is returned": "the code",
    "work after a record, on its stream": "the code",
    "softmax twice on a side stream": "the code",
    "event after a changed input, torch's remedy 4": "the graph",
    "streams added to code that is in the cache": "the cache",
}


def measure() -> dict[str, Any]:
    """What this torch makes of the patterns: (verdict, what was seen) by question, and Inductor's code by function.

    Takes the package triton, and no GPU: the code is for an H100 that is not there, and nothing is run.
    """
    with Ranks(1, "cpu", "gloo", timeout=500, quiet=True) as child:
        return dict(child.run(_measure)[0])


def keep(date: str, triton: str) -> Any:
    """Put what `measure` finds into FILE, under this torch's version."""
    version, found = torch.__version__.partition("+")[0], measure()
    body = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    body[version] = {"date": date, "triton": triton, **found}
    ordered = dict(sorted(body.items()))
    return files.replace(FILE, (json.dumps(ordered, indent=1, ensure_ascii=False) + "\n").encode())


def recorded() -> dict[str, dict[str, Any]]:
    """What was kept, by torch version."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def _measure() -> dict[str, Any]:
    x, rows = torch.linspace(0, 1, 16).reshape(4, 4), {}
    questions = list(QUESTIONS)
    if not torch_compat.has_stream_graphs():
        found = as_data(*compiled(waits_for_streams, (x,), 2, False))
        words = [n.word if n.word != "kernel" else n.target for n in found.forward[0].nodes]
        said = "wait_stream is not in the graph" if "wait_stream" not in words else str(words)
        return {"rows": {one: ["no streams", said] for one in questions}, "code": {}}
    code = write(
        (*CODE, event_between, softmaxed), {fn.__name__: (64, 64) for fn in CODE}, 2
    )  # before all else
    graph = as_data(*compiled(hand_over, (x,), 2, False)).forward[0]
    racing = sum(bool(graph.shuffled(seed).races()) for seed in range(ORDERS))
    rows[questions[0]] = [UNSAFE if racing else SAFE, f"{racing} of {ORDERS} orders race"]
    aside = as_data(*compiled(records_aside, (x,), 2, False))
    refused = as_data(*compiled(changes_and_records, (x,), 2, False)).error
    words = [n.word for n in aside.forward[0].nodes if n.word in ("record_event", "kernel")]
    targets = [n.target for n in aside.forward[0].nodes]
    late = "record_event" in words and (
        "copy_" not in targets
        or targets.index("copy_") > [n.word for n in aside.forward[0].nodes].index("record_event")
    )
    rows[questions[8]] = [
        UNSAFE if late else SAFE,
        "x is written after the record"
        + (", the plain form is refused" if "event was recorded" in refused else ""),
    ]
    rows[questions[9]] = _cache(x)
    for question, fn in zip(questions[1:6], CODE, strict=True):
        races = simulate(program_of(code[fn.__name__])).races
        rows[question] = [UNSAFE if races else SAFE, races[0].text if races else "no race"]
    between = [does for _, _, does in kernels(code["event_between"])]
    late_event = any("sin" in one and "cos" in one for one in between)
    rows[questions[6]] = [
        SAFE,
        "the event comes later than written" if late_event else "no kernel crosses the record",
    ]
    streams = list(dict.fromkeys(s for s, name, _ in kernels(code["softmaxed"]) if name.startswith("triton")))
    rows[questions[7]] = [SAFE if streams == ["stream1"] else UNSAFE, "kernels on " + ", ".join(streams)]
    return {"rows": {one: rows[one] for one in questions},
            "code": {fn.__name__: shortened(code[fn.__name__]) for fn in CODE}}  # fmt: skip


def _cache(x: torch.Tensor) -> list[str]:
    stream, hit = torch_compat.pretend_streams(), False
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for fn in (same_on_default, same_on_side):
            torch_compat.dynamo_reset()
            before = torch_compat.cache_hits()
            try:
                torch.compile(fn, fullgraph=True)(x, stream(1), stream(2))
            except Exception as error:
                return [UNSAFE if torch_compat.cache_hits() > before else SAFE, type(error).__name__]
            hit = torch_compat.cache_hits() > before
    return [UNSAFE if hit else SAFE, "the code without the stream is taken" if hit else "compiled anew"]
