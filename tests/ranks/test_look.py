"""A thread that is looked at from another one goes on as if nobody looked."""

from __future__ import annotations

import subprocess
import sys

LOOKED_AT = """
import gc, threading, time, weakref
from oddrank.live.introspect import Inspector

class Held:
    pass

class Garbage:
    alive = 0
    def __init__(self):
        self.me = self
        Garbage.alive += 1
    def __del__(self):
        Garbage.alive -= 1
        if threading.current_thread() is looker:
            time.sleep(0)  # here the other thread may run on

def deep(depth):
    if depth:
        return deep(depth - 1)
    held = Held()
    if Garbage.alive < 3:
        Garbage()
    began = time.perf_counter()
    while time.perf_counter() < began + 1e-3:
        pass
    return weakref.ref(held)

def look():
    while not done:
        looks.append(inspector.look())
        stacks.append(inspector.where().frames)

done, looks, stacks, outlived = False, [], [], 0
inspector = Inspector(lambda: True)
looker = threading.Thread(target=look)
gc.set_threshold(100)
looker.start()
while len(stacks) < 30 and looker.is_alive():
    for depth in (3, 200):
        outlived += deep(depth)() is not None
        outlived += not gc.isenabled()
done = True
looker.join()
found = sum("deep" in stack[-1][0] and len(stack) in (5, 202) for stack in stacks)
print(outlived, found > 15, {bool(look.progress[0]) for look in looks})
"""


def test_nothing_outlives_its_function_and_no_freed_frame_is_read_while_somebody_looks():
    ran = subprocess.run([sys.executable, "-c", LOOKED_AT], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "0 True {True}\n"), ran.stderr[-2000:]
