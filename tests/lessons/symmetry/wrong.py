"""Plausible wrong answers to the exercises of lesson 08, each with words of the hint that is meant for it."""

from __future__ import annotations

from course.symmetry.exercises import line_of

SKIPS, WAITS = line_of("continue"), line_of("loss = forward(loader.next()).square().mean()")
A, B = {"rank": 2, "collective": 27, "line": SKIPS}, {"rank": 1, "collective": 37, "line": WAITS}


def only_one_run():
    return {"a": A}


def a_rank_in_words():
    return {"a": {**A, "rank": "rank 2"}, "b": B}


def who_waits():
    return {"a": {**A, "rank": 0}, "b": B}


def where_it_stands():
    return {"a": {**A, "line": WAITS}, "b": B}


def its_last_call():
    return {"a": A, "b": {**B, "collective": 36}}


def after_the_first():
    return {"a": {**A, "collective": 28}, "b": B}


def the_thread_that_reads():
    return {"a": A, "b": {**B, "line": line_of("for batch in torch.load(file):")}}


def a_bool():
    return {"a": A, "b": {**B, "rank": True}}


def in_the_all_reduce():
    return {"a": A, "b": {**B, "line": line_of("dist.all_reduce(whole)")}}


CALLS = {
    "A": (1, "tensor", "tensor_1", "bucketing on one rank"),
    "B": (2, "tensor_2", "tensor_1", "gradients on one rank"),
    "C": None,
}


def by_their_counts():
    return {**CALLS, "B": (3, "tensor_2", "tensor_2", "gradients on one rank")}


def waits_as_calls():
    return {**CALLS, "C": (2, "res", "tensor_1", "gradients on one rank")}


def nothing_differs():
    return {**CALLS, "A": None}


def ranks_swapped():
    return {**CALLS, "A": (1, "tensor_1", "tensor", "bucketing on one rank")}


def gradients_everywhere():
    return {**CALLS, "A": (1, "tensor", "tensor_1", "gradients on one rank")}


def merged_by_bucketing():
    return {**CALLS, "B": (2, "tensor_2", "tensor_1", "bucketing on one rank")}


def an_own_word():
    return {**CALLS, "B": (2, "tensor_2", "tensor_1", "CSE")}


def numbers_only():
    return {"A": 1, "B": 2, "C": None}


def only_two_jobs():
    return {job: CALLS[job] for job in "AB"}


def true_for_one():
    return {**CALLS, "A": (True, *CALLS["A"][1:])}


def the_name_of_the_call():
    return {**CALLS, "A": (1, "all_gather_into_tensor", "all_reduce", "bucketing on one rank")}


FINDINGS = {
    only_one_run: "whole numbers",
    a_rank_in_words: "whole numbers",
    who_waits: "which one differs from the other three",
    where_it_stands: "which line of the loop",
    its_last_call: "all ranks made that one",
    after_the_first: "there is an earlier number",
    the_thread_that_reads: "where does the main thread of this one wait",
    a_bool: "whole numbers",
    in_the_all_reduce: "where does the main thread of this one wait",
}
OUTPUTS = {
    by_their_counts: "which pair is the first unlike one",
    waits_as_calls: "in order, without waits",
    nothing_differs: "in order, without waits",
    ranks_swapped: "rank 0's stands first",
    gradients_everywhere: "how long is its input",
    merged_by_bucketing: "compare the lines AOT ID",
    an_own_word: "one of 'a graph break'",
    numbers_only: "None where the calls are alike",
    only_two_jobs: "None where the calls are alike",
    true_for_one: "None where the calls are alike",
    the_name_of_the_call: "the comment above a call",
}


WRONG = {"symmetry.dumps": FINDINGS, "symmetry.compiled": OUTPUTS}
