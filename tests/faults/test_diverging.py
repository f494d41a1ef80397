"""Ranks that diverge or never end: the stall limit names the first difference, the timeout says where each stands."""

from __future__ import annotations

import re

import pytest
from kernels import AT_ONCE_S, for_each_rank

pytestmark = pytest.mark.kernel
BACKENDS = ("gloo", "shm")

LIMITED = """
groups = {n: labkit.Ranks(n, device='cpu', backend='BACKEND', quiet=True, stall=0.6) for n in (2, 4)}
ranks = groups[2]
"""


@pytest.fixture(scope="module", autouse=True)
def limited(lesson):
    lesson.value(LIMITED.replace("BACKEND", lesson.backend))


def stalled(lesson, body: str, n: int = 2) -> str:
    found = lesson.cell(f"def diverge():\n{body}\ngroups[{n}].run(diverge)")
    assert found.seconds < AT_ONCE_S, "the stall limit is 0.6 s"
    assert found.error.startswith("stalled: the ranks have waited for each other for 0.6 s")
    assert lesson.right(n)
    return found.error


def mismatch(lesson, body: str, n: int) -> str:
    """What shm, which compares the calls themselves, says on every rank of ranks in different ones."""
    found = lesson.cell(f"def diverge():\n{body}\ngroups[{n}].run(diverge)")
    raised = re.findall(r"^rank (\d) raised Mismatch: ranks met in", for_each_rank(found.error), re.M)
    assert sorted(raised) == sorted(map(str, range(n))), found.error
    assert lesson.right(n)
    return found.error


@pytest.mark.parametrize("n", [2, 4])
def test_one_call_more(lesson, n):
    text = stalled(
        lesson,
        "    dist.all_reduce(torch.ones(4))\n    if dist.get_rank() == 0:\n        dist.all_reduce(torch.ones(2, 3))",
        n,
    )
    assert f"rank {n - 1} finished its part" in for_each_rank(text)
    if lesson.backend == "shm":  # which keeps no record of collectives
        assert re.search(
            r"rank 0 was waiting in all_reduce\(sum, float32, 6 elements\) here:\n +In \[\d+\]:4", text
        )
        return
    assert re.search(
        r"First difference, at collective 2:\n +rank 0  all_reduce \(2, 3\) float32 at In \[\d+\]:4", text
    )
    assert re.search(rf"rank {n - 1}  never called it", text)
    assert re.search(
        r"last collectives of rank 0:\n +1  all_reduce \(4,\) float32 at In \[\d+\]:2 \(diverge\)\n +2 .*not finished",
        text,
    )


@pytest.mark.parametrize("n", [2, 4])
def test_another_order(lesson, n):
    body = (
        "    x = torch.ones(4)\n    if dist.get_rank() == 0:\n"
        "        dist.all_reduce(x)\n        dist.broadcast(x, 0)\n"
        "    else:\n        dist.broadcast(x, 0)\n        dist.all_reduce(x)"
    )
    if lesson.backend == "shm":  # which compares the calls: no rank waits
        text = mismatch(lesson, body, n)
        assert re.search(r"rank 0 .* all_reduce\(sum, float32, 4 elements\), rank \d called broadcast", text)
        return
    text = stalled(lesson, body, n)
    assert re.search(
        r"rank 0  all_reduce \(4,\) float32 at In \[\d+\]:4 .*\n +rank 1  broadcast \(4,\) float32 at In \[\d+\]:7",
        text,
    )


def test_a_store_wait_and_a_collective(lesson):
    text = stalled(lesson, "    in_store() if dist.get_rank() else in_collective()")
    call = "all_reduce" if lesson.backend == "gloo" else "all_reduce(sum, float32, 1 element)"
    assert "rank 1 was waiting in a store here" in text and f"rank 0 was waiting in {call} here" in text


def test_a_compiled_function(lesson):
    text = stalled(
        lesson,
        "    import torch.distributed._functional_collectives as fc\n"
        "    f = torch.compile(lambda x: fc.all_reduce(x * 2, 'sum', dist.group.WORLD) + 1, backend='aot_eager')\n"
        "    f(torch.ones(4))\n    if dist.get_rank():\n        f(torch.ones(4))",
    )
    if lesson.backend == "shm":
        assert (
            "rank 0 finished its part" in text
            and "rank 1 was waiting in all_reduce(sum, float32, 4 el" in text
        )
        return
    assert re.search(
        r"First difference, at collective \d+:\n +rank 0  never called it\n +rank 1  all_reduce", text
    )


def test_other_sizes_abort_gloo_or_raise_over_shm_and_the_cell_says_who(lesson):
    body = "    dist.all_reduce(torch.ones(4 if dist.get_rank() else 6))"
    if lesson.backend == "shm":
        assert re.search(r"rank 0 .* 6 elements\), rank 1 called .* 4 elements\)", mismatch(lesson, body, 2))
        return
    found = lesson.cell(f"def sizes():\n{body}\nranks.run(sizes)")
    assert found.seconds < AT_ONCE_S
    assert re.search(r"rank \d died: killed by SIGABRT", found.error)
    assert re.search(r"rank 0 .*\n(.*\n)*? +In \[\d+\]:2 \(sizes\) +dist.all_reduce", found.error)
    assert lesson.right()


@pytest.mark.parametrize(
    "work",
    [
        "end = time.time() + 2\n        while time.time() < end: pass",
        "x = torch.ones(400, 400)\n        for _ in range(400): x = x @ x / 400",
        "time.sleep(2)",
        "f = torch.compile(lambda x: torch.relu(x @ x).sum()); f(torch.ones(8, 8))",
    ],
    ids=["loop", "matmul", "sleep", "compile"],
)
def test_work_of_one_rank_is_no_stall_of_the_other(lesson, work):
    found = lesson.cell(
        f"def late():\n    if dist.get_rank():\n        {work}\n"
        f"    dist.all_reduce(torch.ones(1))\n    return 'came'\nranks.run(late).same()"
    )
    assert found.out["error"] is None, found.error
    assert found.out["text"] == "'came'"


def test_the_limit_can_be_set_for_a_call_and_switched_off(lesson):
    lesson.value("def half():\n    if dist.get_rank(): dist.all_reduce(torch.ones(1))")
    assert "for 0.3 s (stall limit)" in lesson.cell("ranks.run(half, stall=0.3)").error
    assert "no end within 1.5 s (timeout)" in lesson.cell("ranks.run(half, stall=None, timeout=1.5)").error
    assert "stall must be a number above 0 or None" in lesson.cell("ranks.run(half, stall=0)").error


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("peers", ["in_collective", "in_store"])
@pytest.mark.parametrize(
    ("stuck", "line"), [("time.sleep(60)", "time.sleep"), ("exec('while True: pass')", "exec")]
)
def test_a_rank_sleeps_or_loops_for_ever(lesson, stuck, line, peers, n):
    found = lesson.cell(
        f"def stuck():\n    if dist.get_rank() == 0:\n        {stuck}\n"
        f"    {peers}()\ngroups[{n}].run(stuck, timeout=1.2)"
    )
    assert found.seconds < AT_ONCE_S
    assert found.error.startswith("no end within 1.2 s (timeout)")
    assert re.search(rf"rank 0 was here:\n(.*\n)*? +In \[\d+\]:3 \(stuck\) +{re.escape(line)}", found.error)
    each = for_each_rank(found.error)
    assert all(re.search(rf"^rank {rank} was waiting in", each, re.M) for rank in range(1, n))
    assert lesson.right(n)
