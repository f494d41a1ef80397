"""Plausible wrong answers to the exercises of lesson 09, each with words of the hint that is meant for it."""

from __future__ import annotations

import re
from collections import Counter

import torch


def entries(log):
    found = Counter(re.findall(r"\[(\d+)/\d+\] \[__recompiles\] Recompiling", log))
    return {int(frame): n for frame, n in found.items()}


def with_the_attempt_at_the_limit(log):
    return {frame: 1 + n for frame, n in entries(log).items()}


def reasons(log):
    found = Counter(re.findall(r"\[(\d+)/\d+\] \[__recompiles\]     - \d+/\d+: ", log))
    return {int(frame): 1 + n for frame, n in found.items()}


def frames_of_one_digit(log):
    found = Counter(re.findall(r"\[(\d)/\d+\] \[__recompiles\] Recompiling", log))
    return {int(frame): 1 + n for frame, n in found.items()}


def never_more_than_eight(log):
    return {frame: min(8, 1 + n) for frame, n in entries(log).items()}


def one_frame(log):
    return {0: 3}


def a_number(log):
    return 3


def as_text(log):
    return {str(frame): n for frame, n in entries(log).items()}


def as_it_was(blocks):
    for block in blocks:
        block.compile(backend="eager")


def a_limit_of_twelve(blocks):
    torch._dynamo.config.recompile_limit = 12
    as_it_was(blocks)


def a_limit_of_their_number(blocks):
    torch._dynamo.config.recompile_limit = len(blocks)
    as_it_was(blocks)


def isolated(blocks):
    for block in blocks:
        block.compile(backend="eager", isolate_recompiles=True)


def no_index(blocks):
    for block in blocks:
        block.layer = 0
    as_it_was(blocks)


def not_compiled(blocks):
    pass


def a_stance(blocks):
    torch.compiler.set_stance("eager_on_recompile")
    as_it_was(blocks)


def while_it_prepares(blocks):
    with torch._dynamo.config.patch(recompile_limit=100):
        as_it_was(blocks)


def an_error_instead(blocks):
    for block in blocks:
        block.compile(backend="eager", fullgraph=True)


def _right():
    return {
        "embed": ([0, 1], "tokens", "mark_unbacked"),
        "forward": ([0, 1], "layer", "a tensor"),
        "attend": ([0, 1], "past", "a fixed size"),
        "head": ([1], "total", "wait first"),
    }


def both_ranks():
    return _right() | {"head": ([0, 1], "total", "wait first")}


def the_first_argument():
    return _right() | {"attend": ([0, 1], "query", "a fixed size")}


def marked_dynamic():
    return _right() | {"embed": ([0, 1], "tokens", "mark_dynamic")}


def warm_lengths():
    return _right() | {"embed": ([0, 1], "tokens", "warm up")}


def switched_blocks():
    return _right() | {"forward": ([0, 1], "layer", "allow_unspec_int_on_nn_module")}


def isolated_blocks():
    return _right() | {"forward": ([0, 1], "layer", "isolate_recompiles")}


def warm_head():
    return _right() | {"head": ([1], "total", "warm up")}


def warm_blocks():
    return _right() | {"forward": ([0, 1], "layer", "warm up")}


def warm_lists():
    return _right() | {"attend": ([0, 1], "past", "warm up")}


def more_time():
    return _right() | {"head": ([1], "total", "timeout")}


def a_list():
    return list(_right())


COUNTS = {
    entries: "count from 0",
    with_the_attempt_at_the_limit: "the entry at the limit compiled nothing",
    reasons: "count entries, and not reasons",
    frames_of_one_digit: "one number for each frame",
    never_more_than_eight: "the limit is a setting",
    one_frame: "one number for each frame",
    a_number: "returns a dict such as {0: 3}: frame and versions",
    as_text: "are whole numbers",
}
BLOCKS = {
    as_it_was: "has it to be a Python int",
    a_limit_of_twelve: "a limit that is a number",
    a_limit_of_their_number: "compiles its own version",
    isolated: "compiles its own version",
    no_index: "the index has to change with the block",
    not_compiled: "no block runs compiled code at all",
    a_stance: "no block runs compiled code at all",
    while_it_prepares: "has it to be a Python int",
    an_error_instead: "the limit is still in the way",
}
SERVED = {
    both_ranks: "which of the two logs",
    the_first_argument: "of which list",
    marked_dynamic: "a size of 1 does not fit the symbol",
    warm_lengths: "takes three versions",
    switched_blocks: "without a Python int",
    isolated_blocks: "no two blocks share a version",
    warm_head: "a version that rank 0 does not have",
    warm_blocks: "a warm-up hits it as well",
    warm_lists: "no last length to warm up",
    more_time: "it still happens",
    a_list: "with embed, forward, attend and head",
}

WRONG = {"guards.count": COUNTS, "guards.twelve": BLOCKS, "guards.served": SERVED}
