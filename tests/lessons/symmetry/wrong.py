"""Plausible wrong answers to the exercises of lesson 08, each with words of the hint that is meant for it."""

from __future__ import annotations

import copy
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


def _gathered(mine):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def only_the_others(settings):
    every = _gathered(settings)
    for name in {name for one in every for name in one}:
        values = [one.get(name, "not set") for one in every]
        if settings.get(name, "not set") != values[0]:
            raise ValueError(f"{name}: {values}")


def as_text(settings):
    every = _gathered(str(settings))
    if len(set(every)) > 1:
        raise ValueError(" or ".join(every))


def own_names_only(settings):
    every = _gathered(settings)
    for name in every[1]:
        if len({str(one.get(name)) for one in every}) > 1:
            raise ValueError(f"{name}: {[one.get(name) for one in every]}")


def none_is_missing(settings):
    every = _gathered(settings)
    for name in {name for one in every for name in one}:
        values = [one.get(name) for one in every]
        if any(value != values[0] for value in values):
            raise ValueError(f"{name}: {values}")


def as_texts(settings):
    every = _gathered(settings)
    for name in {name for one in every for name in one}:
        values = [str(one.get(name, "not set")) for one in every]
        if len(set(values)) > 1:
            raise ValueError(f"{name}: {values}")


def without_values(settings):
    if len({str(sorted(one.items())) for one in _gathered(settings)}) > 1:
        raise ValueError("the settings differ")


def _counts():
    counters = torch._dynamo.utils.counters
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}


def all_that_was_counted(run):
    run()
    return _gathered(_counts())


def reasons(run):
    torch._dynamo.utils.counters.clear()
    run()
    counters = torch._dynamo.utils.counters
    return _gathered(
        {"graphs": counters["stats"]["unique_graphs"], "breaks": len(counters["graph_break"]) * 3}
    )


def its_own_only(run):
    torch._dynamo.utils.counters.clear()
    run()
    return [_counts()]


def before_it_runs(run):
    torch._dynamo.utils.counters.clear()
    found = _gathered(_counts())
    run()
    return found


counters = copy.deepcopy(torch._dynamo.utils.counters)  # as a variable of a notebook reaches a rank


def of_the_notebook(run):
    before = {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
    run()
    after = {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
    return _gathered({name: after[name] - before[name] for name in after})


def breaks(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return total if total.sum() > 0 else torch.zeros_like(total)


def by_its_own_shard(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return torch.where(x.sum() > 0, total, torch.zeros_like(total))


def not_a_number(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return torch.where(total.sum() > 0, total, torch.zeros_like(total)) * float("nan")


def number_by_number(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD).relu()


def in_a_row(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return torch.where(total.sum() > 0, total, torch.zeros_like(total))[None]


def forgets_the_result(x):
    funcol.all_reduce(x, "sum", dist.group.WORLD)


def _in_the_background(watch):
    threading.Thread(target=watch, daemon=True).start()


def is_there(store, window, on_silence):
    def watch():
        while store.check(["heartbeat"]):
            time.sleep(window / 5)
        on_silence()

    _in_the_background(watch)


def after_a_window(store, window, on_silence):
    def watch():
        before = store.get("heartbeat")
        time.sleep(window)
        if store.get("heartbeat") != before:
            time.sleep(window)
        on_silence()

    _in_the_background(watch)


def one_thread(store, window, on_silence):
    def watch():
        last, heard = None, time.monotonic()
        while time.monotonic() - heard < window:
            beat = store.get("heartbeat")
            if beat != last:
                last, heard = beat, time.monotonic()
            time.sleep(window / 5)
        on_silence()

    _in_the_background(watch)


def in_the_foreground(store, window, on_silence):
    before = None
    while (beat := store.get("heartbeat")) != before:
        before = beat
        time.sleep(window)
    on_silence()


SETTINGS = {
    only_the_others: "every rank has to raise",
    as_text: "the order in a dict means nothing",
    own_names_only: "a setting may be there on one rank only",
    none_is_missing: "a setting may be there on one rank only",
    as_texts: "True is not 'True'",
    without_values: "name the setting",
}
HEALTHS = {
    all_that_was_counted: "take the difference",
    reasons: "a reason can count twice",
    its_own_only: "all_gather_object gives every rank",
    before_it_runs: "after run()",
    of_the_notebook: "after run()",
}
BRANCHES = {
    breaks: "torch.where",
    by_its_own_shard: "decide by the sum over all ranks",
    not_a_number: "decide by the sum over all ranks",
    number_by_number: "decide by the sum over all ranks",
    in_a_row: "decide by the sum over all ranks",
    forgets_the_result: "return the tensor",
}
WATCHDOGS = {
    is_there: "look whether its value changes",
    after_a_window: "note the time of the last change",
    one_thread: "let one thread ask and another watch",
    in_the_foreground: "starts a daemon thread and returns",
}


WRONG = {
    "symmetry.parity": SETTINGS,
    "symmetry.health": HEALTHS,
    "symmetry.repair": BRANCHES,
    "symmetry.watchdog": WATCHDOGS,
}
