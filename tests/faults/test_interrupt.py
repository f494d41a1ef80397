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


ENDS_ITSELF = ("raises", "killed")
# where the cell ends by itself a second press may come as it ends, and then ipykernel 7.4 may end its own loop
CASES = [
    (fault, n, 1 if fault.startswith(ENDS_ITSELF) else presses)
    for n, presses in [(2, 1), (2, 2), (4, 2)]
    for fault in FAULTS
    if (n, presses) != (2, 2) or not fault.startswith(ENDS_ITSELF)
]


@pytest.mark.parametrize(("fault", "n", "presses"), CASES)
def test_stop(lesson, fault, n, presses):
    request = lesson.kernel.start(f"def faulty():\n{LAST}{FAULTS[fault]}\ngroups[{n}].run(faulty)")
    time.sleep(0.25)  # about when the first ones fail
    pressed = time.monotonic()
    for _ in range(presses):
        lesson.kernel.manager.interrupt_kernel()
        time.sleep(0.1)
    found = lesson.kernel.finish(request)
    assert quiet_seconds(pressed) < AT_ONCE_S
    kinds = ["KeyboardInterrupt", "RankError"] if fault.startswith(ENDS_ITSELF) else ["KeyboardInterrupt"]
    assert found["error"] and found["error"][0] in kinds, found
    if found["error"][0] == "KeyboardInterrupt":
        assert "All ranks were replaced" in found["error"][1]
    assert lesson.right(n)
    time.sleep(0.1)


def test_stop_while_nothing_runs(lesson):
    lesson.kernel.manager.interrupt_kernel()
    time.sleep(0.3)
    assert lesson.right()
