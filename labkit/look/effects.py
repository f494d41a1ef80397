"""What one rank's switches did in a run, counted as torch does it: passes, CUDA graphs, DDP's cuts, FSDP2's gathers."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pandas as pd

from labkit import torch_compat
from labkit.look.made import Made

__all__ = ["TYPES", "Seen"]

TYPES = {"rank": "int64", "switch": "str", "value": "str", "compile_id": "str"}
TYPES |= {"before": "str", "after": "str", "note": "str", "times": "int64"}


class Seen:
    """Counts what switches do on this rank, from `attach` to `close`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._hooks: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._buckets: dict[str, int] = {}
        self._torch = torch_compat.Effects(self._say)
        self.attach: Callable[[bool], None] = self._torch.attach
        self.close: Callable[[], None] = self._torch.close

    def called(self) -> None:
        """Note switches that nothing but their value shows, at a call of a compiled object."""
        if name := torch_compat.one_rank_switch():
            self._counts[name, "True", "", "", "", ""] = 1
        if (mode := torch_compat.ddp_optimizer_mode()) is not True:
            self._counts["optimize_ddp", str(mode), "", "", "", ""] = 1

    def table(self, made: list[Made]) -> pd.DataFrame:
        """Make the table of what was seen; its columns are those of `TYPES`, without rank."""
        self._buckets |= self._torch.ddp_buckets()  # at the end the module may be gone
        rows = []
        for (switch, value, compile_id, before, *rest), count in self._counts.items():
            if switch == "DDPOptimizer":
                before = str(self._buckets.get(compile_id, 0))
            rows.append((switch, value, compile_id, before, *rest, count))
        for one in made:
            module = one.module()
            if one.calls and module is not None and torch_compat.is_sharded(module):
                runs = self._hooks.get(module, 0)
                rows.append(
                    ("FSDP2 hooks", f"{one.name} at {one.place}", "", str(one.calls), str(runs), "", 1)
                )
        return pd.DataFrame(rows, columns=[name for name in TYPES if name != "rank"])

    def _say(
        self,
        switch: str,
        value: str = "",
        before: str = "",
        after: str = "",
        note: str = "",
        module: Any = None,
    ) -> None:
        if module is not None:
            self._hooks[module] = self._hooks.get(module, 0) + 1
            return
        self._counts[switch, value, torch_compat.current_compile_id(), before, after, note] += 1


torch_compat.hide_from_dynamo(Seen.called.__code__, calls=True)
