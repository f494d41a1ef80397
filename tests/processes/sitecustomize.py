"""Every Python that a test starts begins with this: the collector looks less often among what torch's imports made.

They make a million objects that stay. A process that imports Dynamo and Inductor takes a quarter less time so.
"""

import gc

gc.set_threshold(5_000, 10, 10)
