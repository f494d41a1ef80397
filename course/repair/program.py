"""The programs of lesson 18 as they are delivered, a service and a training job, and the fixes of their faults.

Readers fix both in the cells of the lesson and save them there, so their first state is kept as data. `make map`
writes that from the notebook, and a test holds the two together.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from labkit import files, lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


_KEPT = files.ours("data/delivered/18_repair_it.json")
# the source of each cell by its label
CELLS = {label: "\n".join(lines) for label, lines in json.loads(_KEPT.read_text(encoding="utf-8")).items()}
lessons.execute(CELLS, globals())
