"""Right answers to the exercises of lesson 09 in other words than those of the solutions."""

from __future__ import annotations

import re
from collections import Counter

import torch


def entries_less_limits(log):
    """One for the first version, one for each entry, and none for the entry whose tag the limit's warning has."""
    entries = Counter(re.findall(r"\[(\d+)/\d+\] \[__recompiles\] Recompiling", log))
    limits = Counter(re.findall(r"\[(\d+)/\d+\] torch\._dynamo hit config", log))
    return {int(frame): 1 + n - limits[frame] for frame, n in entries.items()}


def named_versions(log):
    """The versions that reasons name, and the last one, which no reason names, unless it came to nothing."""
    last, given_up = {}, set()
    for line in log.splitlines():
        tag = line.partition("[")[2] if line.startswith("[rank") else line
        if "[__recompiles]" in line:
            frame, version = re.search(r"\[(\d+)/(\d+)\] \[__re", line).groups()
            last[int(frame)] = max(last.get(int(frame), 0), int(version))
        elif "hit config" in tag:
            given_up.add(int(re.search(r"\[(\d+)/\d+\] torch", line)[1]))
    return {frame: version + (frame not in given_up) for frame, version in last.items()}


def a_buffer(blocks):
    for block in blocks:
        layer = block.layer
        del block.layer
        block.register_buffer("layer", torch.tensor(layer), persistent=False)
        block.compile(backend="eager")


def from_outside(blocks):
    torch.compiler.config.dynamic_sources = "L['self'].layer"
    for block in blocks:
        block.compile(backend="eager")


def a_float(blocks):
    for block in blocks:
        block.layer = float(block.layer)
        block.compile(backend="eager")


def the_switch(blocks):
    torch._dynamo.config.allow_unspec_int_on_nn_module = True
    for block in blocks:
        block.compile(backend="eager")


def other_remedies():
    return {
        "head": (1, "total", "wait first"),
        "attend": ((0, 1), "past", "a fixed size"),
        "forward": ({1, 0}, "layer", "a tensor"),
        "embed": ([1, 0], "tokens", "a fixed size"),
    }


RIGHT = {
    "guards.count": (entries_less_limits, named_versions),
    "guards.twelve": (a_buffer, from_outside, a_float, the_switch),
    "guards.served": (other_remedies,),
}
