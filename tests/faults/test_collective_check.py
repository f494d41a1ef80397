"""`verify=True`: each way of diverging that gloo lets pass in silence is an error on every rank."""

from __future__ import annotations

import re

import pytest
from kernels import AT_ONCE_S, for_each_rank

pytestmark = pytest.mark.kernel

START = """
backends = {2: 'gloo', 3: 'shm', 4: 'gloo'}
groups = {n: labkit.Ranks(n, device='cpu', backend=b, verify=True, quiet=True) for n, b in backends.items()}
ranks = groups[2]
import torch.distributed._functional_collectives as fc
"""

ALL = "    mine = dist.get_rank() == 0\n"
SILENT = {
    "dtype": (
        ALL + "    dist.all_reduce(torch.ones(4, dtype=torch.float32 if mine else torch.int32))",
        "different dtype",
    ),
    "reduction": (
        ALL + "    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.SUM if mine else dist.ReduceOp.MAX)",
        "different reduction",
    ),
    "shape": (ALL + "    dist.all_reduce(torch.ones((2, 3) if mine else (3, 2)))", "different shape"),
    "size": (ALL + "    dist.all_reduce(torch.ones(4 if mine else 6))", "different shape"),
    "one fewer": (
        ALL + "    if mine:\n        dist.all_reduce(torch.ones(4))\n"
        "    dist.all_reduce(torch.ones(4))\n    dist.all_reduce(torch.ones(4))",
        "different line that called it",
    ),
    "one fewer through a helper": (
        ALL + "    def add(x):\n        dist.all_reduce(x)\n"
        "    if mine:\n        add(torch.ones(4))\n    add(torch.ones(4))",
        "different line that called it",
    ),
    "one fewer at the end": (
        ALL + "    for _ in range(3 + mine):\n        dist.all_reduce(torch.ones(4))",
        "a rank has finished its part",
    ),
    "swap": (
        ALL + "    a, b = torch.full((4,), 1.0), torch.full((4,), 100.0)\n"
        "    for t in (a, b) if mine else (b, a):\n        dist.all_reduce(t)",
        r"swapped tensors: rank 0 sent `a` and then `b`, rank 1 `b` and then `a`",
    ),
    "another collective": (
        ALL + "    x = torch.ones(4)\n    dist.all_reduce(x) if mine else dist.broadcast(x, 0)",
        "different name",
    ),
    "root": (ALL + "    dist.broadcast(torch.ones(4), 0 if mine else 1)", "different root"),
    "compiled": (
        ALL
        + "    f = torch.compile(lambda x, op: fc.all_reduce(x * 2, op, dist.group.WORLD), backend='aot_eager')\n"
        "    f(torch.ones(4), 'sum' if mine else 'max')",
        "different reduction",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def checked(lesson):
    lesson.value(START)


@pytest.mark.parametrize("kind", SILENT)
@pytest.mark.parametrize("n", [2, 3, 4], ids=["2 gloo", "3 shm", "4 gloo"])
def test_what_gloo_lets_pass(lesson, kind, n):
    body, reason = SILENT[kind]
    found = lesson.cell(f"def diverge():\n{body}\n    return 'computed'\ngroups[{n}].run(diverge)")
    assert re.search(reason, found.error)
    assert found.seconds < AT_ONCE_S
    for rank in range(n):
        named = re.search(
            rf"\n +rank {rank}  (\w+.*at In \[\d+\]:\d+|none: it has finished its part)", found.error
        )
        assert named, found.error
    text = for_each_rank(found.error)
    told = set(re.findall(r"^rank (\d) raised Diverged", text, re.M))
    finished = set(re.findall(r"^rank (\d) finished its part", text, re.M))
    assert told | finished == set(map(str, range(n)))
    assert lesson.right(n)


def test_correct_programs_pass(lesson):
    found = lesson.value(
        "def fine():\n"
        "    from torch.nn.parallel import DistributedDataParallel\n"
        "    from torch.distributed.device_mesh import init_device_mesh\n"
        "    r = dist.get_rank()\n"
        "    x = torch.full((3,), r + 1.0)\n"
        "    if r == 0:\n        dist.broadcast(x, 0)\n    else:\n        dist.broadcast(x, 0)\n"
        "    left, right = torch.ones(1), torch.ones(1)\n"
        "    dist.all_reduce(left if r == 0 else right)\n"
        "    group = init_device_mesh('cpu', (2,)).get_group()\n"
        "    f = torch.compile(lambda x: fc.all_reduce(x, 'sum', group) * 2, backend='aot_eager', fullgraph=True)\n"
        "    said = [None, None]\n    dist.all_gather_object(said, 'a' * (r + 1))\n"
        "    model = DistributedDataParallel(torch.nn.Linear(2, 1))\n    model(torch.ones(1, 2)).sum().backward()\n"
        "    work = dist.all_reduce(x, async_op=True)\n    work.wait()\n"
        "    for _ in range(600): dist.barrier()\n"
        "    return f(x).tolist(), said, dist.get_backend()\n"
        "ranks.run(fine).same()"
    )
    assert found == "([8.0, 8.0, 8.0], ['a', 'aa'], 'gloo')"


def test_messages_pass_and_threads_do_not_wait_for_each_other(lesson):
    """Rank 0's thread calls first, rank 1's main thread: with one connection each waits for the other's peer."""
    found = lesson.value(
        "def fine():\n"
        "    import threading\n"
        "    r, x, group = dist.get_rank(), torch.ones(2), dist.new_group()\n"
        "    dist.send(x * 5, 1) if r == 0 else dist.recv(x, 0)\n"
        "    ops = [dist.P2POp(dist.isend, x, 1 - r), dist.P2POp(dist.irecv, torch.ones(2), 1 - r)]\n"
        "    for work in dist.batch_isend_irecv(ops): work.wait()\n"
        "    turn, mine = threading.Event(), torch.ones(1)\n"
        "    def aside():\n"
        "        if r == 1: turn.wait()\n"
        "        dist.all_reduce(mine, group=group)\n"
        "        if r == 0: turn.set()\n"
        "    thread = threading.Thread(target=aside)\n    thread.start()\n"
        "    if r == 0: turn.wait()\n"
        "    else: threading.Timer(1.0, turn.set).start()\n"
        "    dist.all_reduce(x)\n    thread.join()\n"
        "    return x.tolist(), mine.tolist()\n"
        "ranks.run(fine).same()"
    )
    assert found == "([6.0, 6.0], [2.0])"


def test_calls_on_some_ranks_and_after_each_other(lesson):
    assert lesson.value("groups[4].run(lambda: 1, ranks=[1, 2]).same()") == "1"
    assert lesson.right(4) and lesson.right(4)


def test_what_cannot_be_checked_is_refused(lesson):
    assert "verify must be True or False, got 'all'" in lesson.cell("labkit.Ranks(2, verify='all')").error
    assert (
        "works on gloo and shm, and this is fake"
        in lesson.cell("labkit.Ranks(2, backend='fake', verify=True)").error
    )
