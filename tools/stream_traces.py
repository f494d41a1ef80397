"""Profiler traces of one GPU where two streams overlap and where they do not, for lesson 06 to read.

    python -m tools.stream_traces FOLDER

Each case is issued on one stream and on two (`torch.cuda.Stream`), and recorded by `torch.profiler` after a warm-up:
`FOLDER/<case>.json` is the Chrome trace, `FOLDER/cases.json` the median milliseconds of both forms, interleaved, by
CUDA events.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from labkit import hardware

__all__ = ["main"]

ROUNDS = 30
Half = Callable[[], None]


def products(size: int, times: int) -> Half:
    """A chain of matrix products of size x size."""
    a = torch.randn(size, size, device="cuda") / size**0.5

    def half() -> None:
        y = a
        for _ in range(times):
            y = y @ a

    return half


def copy(mebibytes: int, pinned: bool) -> Half:
    """A copy from the host."""
    source = torch.randn(mebibytes << 18)
    source = source.pin_memory() if pinned else source
    target = torch.empty_like(source, device="cuda")

    def half() -> None:
        target.copy_(source, non_blocking=True)

    return half


def cases() -> dict[str, tuple[Half, Half]]:
    """By name, the two halves that do not depend on each other."""
    return {
        "filling": (products(4096, 3), products(4096, 3)),
        "small": (products(256, 40), products(256, 40)),
        "one_fills": (products(4096, 1), products(256, 40)),
        "pinned_copy": (products(4096, 3), copy(64, pinned=True)),
        "pageable_copy": (products(4096, 3), copy(64, pinned=False)),
    }


def run(halves: Sequence[Half], streams: Sequence[torch.cuda.Stream]) -> None:
    """Issue each half on its stream, between what came before and what comes after on the current one."""
    current = torch.cuda.current_stream()
    for half, stream in zip(halves, streams, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            half()
    for stream in streams:
        current.wait_stream(stream)


def milliseconds(halves: Sequence[Half], streams: Sequence[torch.cuda.Stream]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    run(halves, streams)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m tools.stream_traces", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    if not hardware.gpus():
        print("stream traces need an NVIDIA GPU that torch can use", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    forms = {"one stream": (first, first), "two streams": (first, second)}
    told = {}
    for name, halves in cases().items():
        for streams in forms.values():
            for _ in range(10):
                run(halves, streams)
        times: dict[str, list[float]] = {form: [] for form in forms}
        for _ in range(ROUNDS):
            for form, streams in forms.items():
                times[form].append(milliseconds(halves, streams))
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            for form, streams in forms.items():
                torch.cuda.synchronize()
                with record_function(form):
                    run(halves, streams)
                    torch.cuda.synchronize()
        profiled.export_chrome_trace(str(folder / f"{name}.json"))
        told[name] = {form: statistics.median(each) for form, each in times.items()}
        told[name] |= {f"{form}, all": [round(t, 4) for t in each] for form, each in times.items()}
        print(name, {form: f"{statistics.median(each):.3f} ms" for form, each in times.items()}, flush=True)
    body = {"provenance": hardware.describe(), "rounds": ROUNDS, "cases": told}
    (folder / "cases.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
