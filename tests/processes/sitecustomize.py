"""Every Python that a test starts begins with this: the collector looks less often among what torch's imports made.

They make very many objects that stay. So a process that imports Dynamo and Inductor takes about a sixth less time.
"""

import gc

gc.set_threshold(5_000, 10, 10)
