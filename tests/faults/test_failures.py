"""A rank raises, dies, or runs out of memory while its peers wait: the cell ends at once and names it."""

from __future__ import annotations

import re

import pytest
from kernels import AT_ONCE_S, for_each_rank, gone

pytestmark = pytest.mark.kernel
BACKENDS = ("gloo", "shm")

PEERS = ("in_collective", "in_store")
WAIT = r"(all_reduce|all_reduce\(sum, float32, 1 element\)|a store)"  # shm knows the call


def failing(how: str, peers: str, n: int) -> str:
    return (
        f"def faulty():\n    if dist.get_rank() == {n - 1}:\n        {how}\n    {peers}()\n"
        f"groups[{n}].run(faulty)"
    )


@pytest.mark.parametrize("peers", PEERS)
@pytest.mark.parametrize("n", [2, 4])
def test_a_rank_raises(lesson, peers, n):
    found = lesson.cell(failing("raise KeyError('lost')", peers, n))
    assert found.seconds < AT_ONCE_S
    assert re.search(
        rf"^rank {n - 1} raised KeyError: 'lost'\n +In \[\d+\]:3 \(faulty\) +raise KeyError",
        found.error,
        re.M,
    )
    for other in range(n - 1):
        assert re.search(
            rf"^rank {other} was waiting in {WAIT} here:\n +In \[\d+\]:4 \(faulty\)",
            for_each_rank(found.error),
            re.M,
        )
    assert lesson.right(n)


@pytest.mark.parametrize("peers", PEERS)
def test_a_peer_that_computed_until_it_waits_is_said_to_wait(lesson, peers):
    found = lesson.cell(
        "def faulty():\n    store = dist.distributed_c10d._get_default_store()\n"
        f"    if dist.get_rank(): store.wait(['computed {peers}']); raise KeyError('lost')\n"
        "    until = time.monotonic() + 1\n    while time.monotonic() < until: pass\n"
        f"    store.set('computed {peers}', '')\n    {peers}()\nranks.run(faulty)"
    )
    assert re.search(rf"^rank 0 was waiting in {WAIT} here:", for_each_rank(found.error), re.M)
    assert lesson.right()


@pytest.mark.parametrize("peers", PEERS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_rank_raises_and_destroys_its_group_on_the_way(lesson, peers, moment):
    first = "" if moment == "before" else "dist.all_reduce(torch.ones(1)); "
    found = lesson.cell(
        f"def faulty():\n    try:\n        {first}_ = 1 / dist.get_rank()\n        {peers}()\n"
        "    finally:\n        dist.destroy_process_group()\nranks.run(faulty)"
    )
    assert found.seconds < AT_ONCE_S
    assert re.search(r"^rank 0 raised ZeroDivisionError: .*\n +In \[\d+\]:3 \(faulty\)", found.error, re.M)
    assert "rank 1" in found.error
    assert lesson.right()


def test_a_rank_raises_between_two_collectives_and_the_stale_one_never_pairs(lesson):
    found = lesson.cell(
        "def half():\n    dist.all_reduce(torch.ones(2))\n    if dist.get_rank() == 1: raise ValueError('half-way')\n"
        "    dist.all_reduce(torch.full((2,), 1000.))\nranks.run(half)"
    )
    assert "rank 1 raised ValueError: half-way" in found.error
    for _ in range(3):
        assert lesson.right()


def test_both_raise_and_the_cause_comes_before_what_followed_from_it(lesson):
    found = lesson.cell(
        "def both():\n    if dist.get_rank() == 1:\n        raise OSError('the cause')\n    try:\n"
        "        dist.all_reduce(torch.ones(1))\n    finally:\n        time.sleep(0)\n"
        "def quick():\n    raise (ValueError if dist.get_rank() else TypeError)('mine')\nranks.run(quick)"
    )
    assert "raised TypeError: mine" in found.error and "raised ValueError: mine" in found.error
    assert "rank 1 raised OSError: the cause" in lesson.cell("ranks.run(both)").error
    assert lesson.right()


@pytest.mark.parametrize("peers", PEERS)
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", r"killed by SIGKILL"),
        ("os._exit(3)", r"exit code 3"),
        ("ctypes.string_at(0)", r"killed by SIGSEGV"),
        ("sys.exit(4)", r"raised SystemExit: 4"),
    ],
    ids=["sigkill", "exit", "segfault", "sys-exit"],
)
@pytest.mark.parametrize("n", [2, 4])
def test_a_rank_dies(lesson, how, words, peers, n):
    found = lesson.cell(failing(how, peers, n))
    assert found.seconds < AT_ONCE_S
    assert re.search(rf"^rank {n - 1} .*{words}", found.error, re.M)
    for peer in range(n - 1):
        assert re.search(rf"^rank {peer} (was waiting|raised)", for_each_rank(found.error), re.M)
    assert lesson.right(n)


def test_a_crash_shows_the_line_of_the_reader_that_led_to_it(lesson):
    found = lesson.cell(failing("ctypes.string_at(0)", "in_store", 2))
    assert re.search(
        r"rank 1 died: killed by SIGSEGV.*\n(.*\n)* +In \[\d+\]:3 \(faulty\) +ctypes.string_at\(0\)",
        found.error,
    )


@pytest.mark.parametrize("peers", PEERS)
@pytest.mark.parametrize("what", ["bytearray(1 << 34)", "torch.ones(1 << 32)"])
def test_a_rank_runs_out_of_memory(lesson, what, peers):
    limit = "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))"
    found = lesson.cell(failing(f"{limit}; {what}", peers, 2))
    assert found.seconds < AT_ONCE_S
    assert re.search(r"^rank 1 raised (MemoryError|RuntimeError: .*can't allocate memory)", found.error, re.M)
    assert lesson.right()


def test_a_process_that_a_rank_started_ends_with_it(lesson):
    found = lesson.cell(
        "def busy():\n    import subprocess\n    child = subprocess.Popen(['sleep', '300'])\n"
        "    print('child', child.pid, flush=True)\n    time.sleep(0.3)\n    raise ValueError\nranks.run(busy)"
    )
    pids = re.findall(r"child (\d+)", found.out["stdout"])
    assert len(pids) == 2
    assert gone(list(map(int, pids))) == []
