"""The stop button, once and twice, in the middle of every other fault: the cell ends within 2 s, the next one works."""

from __future__ import annotations

import time

import pytest
from kernels import AT_ONCE_S, quiet_seconds

pytestmark = pytest.mark.kernel
BACKENDS = ("gloo", "shm")

LAST = "    me, last = dist.get_rank(), dist.get_world_size() - 1\n"
FAULTS = {
    "raises": "    if me == last: time.sleep(0.2); raise ValueError\n    in_collective()",
    "raises, peers in a store": "    if me == last: time.sleep(0.2); raise ValueError\n    in_store()",
    "killed": "    if me == last: time.sleep(0.2); os.kill(os.getpid(), 9)\n    in_collective()",
    "diverges": "    if me: in_collective()",
    "sleeps, peers in a store": "    if me: in_store()\n    time.sleep(60)",
    "loops, peers in a collective": "    if me: in_collective()\n    while True: pass",
    "holds the interpreter lock": "    if me: in_collective()\n    ctypes.PyDLL(None).sleep(60)",
    "floods": "    while True: print('x' * 1000)",
    "ignores interrupts": "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n    while True: time.sleep(60)",
    "swallows interrupts": "    while True:\n        try: time.sleep(60)\n        except KeyboardInterrupt: pass",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("n", "presses"), [(2, 1), (2, 2), (4, 2)])
def test_stop(lesson, fault, n, presses):
    request = lesson.kernel.start(f"def faulty():\n{LAST}{FAULTS[fault]}\ngroups[{n}].run(faulty)")
    time.sleep(0.25)  # about when the first ones fail
    pressed = time.monotonic()
    for _ in range(presses):
        lesson.kernel.manager.interrupt_kernel()
        time.sleep(0.1)
    found = lesson.kernel.finish(request)
    assert quiet_seconds(pressed) < AT_ONCE_S
    ended_itself = fault.startswith(("raises", "killed"))
    if ended_itself and presses > 1 and not found["error"]:
        # the second press came while IPython showed the RankError, which it breaks off with this line
        assert "KeyboardInterrupt" in found["stderr"], found
    else:
        assert found["error"] and found["error"][0] in (
            ["KeyboardInterrupt", "RankError"] if ended_itself else ["KeyboardInterrupt"]
        ), found
    if found["error"] and found["error"][0] == "KeyboardInterrupt":
        assert "All ranks were replaced" in found["error"][1]
    assert lesson.right(n)
    time.sleep(0.1)


def test_stop_while_nothing_runs(lesson):
    lesson.kernel.manager.interrupt_kernel()
    time.sleep(0.3)
    assert lesson.right()
