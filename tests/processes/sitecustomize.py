"""Every Python that a test starts begins with this: it looks less often for garbage among what torch's imports made.

They make very many objects that stay. So a process that imports Dynamo and Inductor takes about a sixth less time. It
ends a second earlier, too, because it does not look among them once more. Zygotes and kernels may be handed over:
prefork.py.

Python 3.11 keeps the frames of calls in pieces of 16 KB, and with a call across a piece's end it gets one and gives it
back (python/cpython#142183). Deep in a compile that may be a call that is made ten thousand times: a tenth of a test's
seconds. The frames above one of half a megabyte are in one piece with it.
"""

import atexit
import gc
import os
import runpy
import sys

gc.set_threshold(50_000, 10, 10)
atexit.register(gc.freeze)
# values in the lowest frame of `python -m`
runpy._run_code.__code__ = runpy._run_code.__code__.replace(co_stacksize=1 << 16)

if "PYTHON_TESTS_PREFORK" in os.environ and {"labkit.ranks.zygote", "ipykernel_launcher"} & {*sys.orig_argv}:
    import prefork

    prefork.hand_over()
