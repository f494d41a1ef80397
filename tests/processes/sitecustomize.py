"""Every Python that a test starts begins with this: it looks less often for garbage among what torch's imports made.

They make very many objects that stay. So a process that imports Dynamo and Inductor takes about a sixth less time. It
ends a second earlier, too, because it does not look among them once more. A zygote may be handed over: prefork.py.
"""

import atexit
import gc
import os
import sys

gc.set_threshold(5_000, 10, 10)
atexit.register(gc.freeze)

if "PYTHON_TESTS_PREFORK" in os.environ and "labkit.ranks.zygote" in sys.orig_argv:
    import prefork

    prefork.hand_over()
