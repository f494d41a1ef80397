"""Lesson 00: which of the tools sees a break at the start of a function, and what moves a print out of the graph."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.slow


def first(x):
    if dist.get_rank() == 0:
        print("hello from rank 0")
    return torch.relu(x)


def model(x):
    return first(x.sin())


def between(x):
    y = x + 1
    if dist.get_rank() == 0:
        print("hello from rank 0")
    return torch.relu(y)


def count(function, reorder):
    """On a rank: what explain counts, what the counters count, and whether fullgraph=True raises."""
    x = torch.ones(3)
    with torch._dynamo.config.patch(reorderable_logging_functions={print} if reorder else set()):
        torch.compiler.reset()
        report = torch._dynamo.explain(function)(x)
        torch.compiler.reset()
        breaks = torch._dynamo.utils.counters["graph_break"]
        breaks.clear()
        torch.compile(function, backend="eager")(x)
        counted = sum(breaks.values())
        torch.compiler.reset()
        try:
            torch.compile(function, backend="eager", fullgraph=True)(x)
            raised = False
        except torch._dynamo.exc.Unsupported:
            raised = True
    return report.graph_count, report.graph_break_count, counted, raised


# without reordering, and with `print` among the functions that Dynamo may move to the end of the graph
ON_RANK_0 = {
    (between, False): (2, 1, 1, True),
    (first, False): (1, 0, 1, True),  # explain does not see it
    (model, False): (
        2,
        1,
        2,
        True,
    ),  # at the call in the model, and in the function, which Dynamo then compiles
    (between, True): (1, 0, 0, False),
    (first, True): (1, 0, 0, False),
}


def test_a_print_on_rank_0(ranks):
    for case, found in ON_RANK_0.items():
        assert list(ranks.run(count, *case).values()) == [found, (1, 0, 0, False)], case
