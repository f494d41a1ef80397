"""Forks, threads, subprocesses and further ranks inside a rank; a full disk, two kernels, many restarts."""

from __future__ import annotations

import pytest
from kernels import AT_ONCE_S, Kernel, gone

pytestmark = pytest.mark.kernel


def test_a_fork_inside_a_rank(lesson):
    code = (
        "def forks():\n    pid = os.fork()\n    if pid == 0:\n        os._exit(7)\n"
        "    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "    in_collective()\n    return code\nranks.run(forks).same()"
    )
    assert lesson.value(code) == "7"
    assert lesson.right()


def test_a_forked_child_that_goes_on_as_if_it_were_the_rank(lesson):
    found = lesson.cell(
        "def forks():\n    os.fork()\n    return os.getpid()\nlen(set(ranks.run(forks).values()))"
    )
    assert found.seconds < AT_ONCE_S
    assert found.out["error"] is None and found.out["text"] == "2"
    assert lesson.right()


def test_threads_and_a_thread_left_behind(lesson):
    code = (
        "def threads():\n    import threading\n    found = []\n"
        "    ts = [threading.Thread(target=lambda i=i: found.append(i)) for i in range(4)]\n"
        "    [t.start() for t in ts]; [t.join() for t in ts]\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    return sorted(found)\nranks.run(threads).same()"
    )
    assert lesson.value(code) == "[0, 1, 2, 3]"
    assert lesson.right()


def test_a_subprocess_and_a_pool_of_processes(lesson):
    assert (
        lesson.value("import subprocess\nranks.run(lambda: subprocess.check_output(['echo', 'hi'])).same()")
        == r"b'hi\n'"
    )
    code = (
        "def pool():\n    import multiprocessing\n    with multiprocessing.get_context('fork').Pool(2) as p:\n"
        "        return p.map(abs, [-1, -2])\nranks.run(pool).same()"
    )
    assert lesson.value(code) == "[1, 2]"


def test_ranks_inside_a_rank(lesson):
    code = (
        "def nested():\n    import labkit\n"
        "    with labkit.Ranks(2, device='cpu', backend='gloo', quiet=True) as inner:\n"
        "        return inner.run(right_number).same()\nranks.run(nested, ranks=[0])[0]"
    )
    assert lesson.value(code, 120) == "[3.0, 3.0]"
    assert lesson.right()


@pytest.mark.parametrize("place", ["/dev/shm", "temp"])
def test_a_full_disk(lesson, place):
    # files can grow no further, which is what a full file system looks like to a process
    code = (
        "def full():\n    import tempfile\n    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        f"    folder = {place!r} if {place!r} != 'temp' else tempfile.gettempdir()\n"
        "    try:\n        with tempfile.TemporaryFile(dir=folder) as file:\n            file.write(b'x' * 100_000)\n"
        "    except OSError as error:\n        print('refused', error.errno)\n    x = torch.ones(100_000)\n"
        "    dist.all_reduce(x)\n    return x.sum().item()\nranks.run(full).same()"
    )
    found = lesson.cell(code)
    assert found.out["error"] is None, found.error
    assert found.out["text"] == "200000.0" and found.out["stdout"].count("refused 27") == 2
    lesson.value("ranks.restart()")


def test_twenty_restarts(lesson):
    before = lesson.value("len(os.listdir('/proc/self/fd'))")
    assert (
        lesson.value(
            "[ranks.restart() or ranks.run(right_number).same() for _ in range(20)] == [[3.0, 3.0]] * 20"
        )
        == "True"
    )
    # a leak would be twenty or more; one may be open for a moment
    assert int(lesson.value("len(os.listdir('/proc/self/fd'))")) < int(before) + 10


def test_two_kernels_at_once(lesson):
    other = Kernel()
    try:
        start = "import labkit, os\nmine = labkit.Ranks(2, device='cpu', quiet=True)\n"
        code = f"{start}print(*mine.run(os.getpid).values())"
        pids = list(map(int, other.run(code, 120)["stdout"].split()))
        assert len(pids) == 2 and lesson.right()
        other.manager.signal_kernel(9)
        assert gone(pids) == []
        assert lesson.right()
    finally:
        other.close()
