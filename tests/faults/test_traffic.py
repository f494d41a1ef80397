"""What travels: big arguments and results, a thousand calls, and what a notebook's functions carry along."""

from __future__ import annotations

import gc
import os
import threading

import pytest


def numbers(ranks) -> tuple[int, int, int]:
    """Open files of this process, and the files and threads of the ranks together."""

    def mine():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    files, threads = zip(*ranks.run(mine).values(), strict=True)
    return len(os.listdir("/proc/self/fd")) + threading.active_count(), sum(files), sum(threads)


def resident(ranks) -> int:
    def mine():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    return sum(ranks.run(mine).values()) + mine()


def test_a_thousand_calls_leave_nothing_behind(ranks):
    def step(i):
        return [i] * 100

    for i in range(50):
        ranks.run(step, i)
    memory, before = resident(ranks), numbers(ranks)  # the first collects what other tests have left
    for i in range(1000):
        assert ranks.run(step, i).same() == [i] * 100
    assert numbers(ranks) == before
    assert resident(ranks) - memory < 24 << 20


def test_a_thousand_functions_leave_no_more_than_a_few_behind(ranks):
    def made(i, pad):
        return lambda: (i, len(pad))

    for i in range(300):
        assert ranks.run(made(i, os.urandom(1 << 14))).same() == (i, 1 << 14)
    memory = resident(ranks)
    for i in range(700):
        ranks.run(made(i, os.urandom(1 << 14)))
    assert resident(ranks) - memory < 64 << 20


@pytest.mark.parametrize(
    "size", [64 << 20, pytest.param(1 << 30, marks=pytest.mark.slow)], ids=["64 MB", "1 GB"]
)
def test_big_arguments_and_results(ranks, size):
    import torch

    x = torch.arange(size // 8)
    assert ranks.run(lambda x: int(x[-1]), x, ranks=[1])[1] == size // 8 - 1
    back = ranks.run(lambda n: torch.arange(n), size // 8, ranks=[0])[0]
    assert torch.equal(back, x)


def test_a_result_from_one_rank_only(ranks):
    assert list(ranks.run(lambda: 5, ranks=1).items()) == [(1, 5)]
    assert ranks.run(lambda: os.environ["RANK"] if os.environ["RANK"] == "0" else None)[1] is None


pytestmark = pytest.mark.kernel


def test_a_cell_that_redefines_a_function_and_its_helper(lesson):
    lesson.value("def helper(): return 'old'\ndef f(): return helper()")
    assert lesson.value("ranks.run(f).same()") == "'old'"
    lesson.value("def helper(): return 'new'")
    assert lesson.value("ranks.run(f).same()") == "'new'"
    lesson.value("def f(): return helper() + '!'")
    assert lesson.value("ranks.run(f).same()") == "'new!'"


def test_closures_over_tensors_and_modules(lesson):
    assert (
        lesson.value(
            "w = torch.full((2,), 3.0)\nlayer = torch.nn.Linear(2, 1, bias=False)\n"
            "with torch.no_grad(): layer.weight.fill_(2.0)\n"
            "def f(): return (layer(w) + w.sum()).item()\nranks.run(f).same()"
        )
        == "18.0"
    )


def test_a_class_of_the_notebook_travels_both_ways(lesson):
    code = (
        "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = torch.nn.Parameter(torch.ones(2))\n    def forward(self, x): return (self.w * x).sum()\n"
        "net = ranks.run(lambda net: net, Net())[1]\n"
        "(type(net).__name__, isinstance(net, Net), net(torch.ones(2)).item())"
    )
    assert lesson.value(code) == "('Net', True, 2.0)"


def test_a_function_compiled_in_a_rank_is_not_compiled_again_by_the_next_call(lesson):
    code = (
        "state = {}\ndef step(x):\n"
        "    if 'f' not in state: state['f'] = torch.compile(lambda x: x * 2, backend='eager')\n"
        "    import torch._dynamo.utils as u\n    y = state['f'](x)\n"
        "    return y.tolist(), u.counters['stats']['unique_graphs']\n"
        "[ranks.run(step, torch.ones(1) * i).same() for i in range(3)]"
    )
    assert lesson.value(code) == "[([0.0], 1), ([2.0], 1), ([4.0], 1)]"


def test_a_compiled_object_is_refused_with_the_way_out(lesson):
    text = lesson.cell("ranks.run(torch.compile(right_number))").error
    assert "cannot travel" in text and "call torch.compile inside the function" in text
    module = lesson.cell("ranks.run(lambda m: 1, torch.compile(torch.nn.Linear(1, 1)))")
    assert module.out["error"] is None or "call torch.compile inside the function" in module.error
