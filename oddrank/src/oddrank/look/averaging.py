"""Whether DDP averaged the gradients of the recorded steps, and if not, why: it was not called, or no_sync was on."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from oddrank import torch_names
from oddrank.live import introspect
from oddrank.look.callables import line_of_program
from oddrank.look.steps import wrapped

__all__ = ["Averaging"]


class Averaging:
    """Notes where a program makes DDP modules and enters their `no_sync`. Their forward stays as it is."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._no_sync: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note them in a block; torch is as it was afterwards."""
        init, no_sync = DistributedDataParallel.__init__, DistributedDataParallel.no_sync

        @functools.wraps(init)
        def noted_init(ddp: Any, /, *args: Any, **kwargs: Any) -> None:
            init(ddp, *args, **kwargs)
            self._made[ddp] = line_of_program()

        def entered(no_sync: Callable[[Any], Any], ddp: Any) -> Any:
            self._no_sync[ddp] = time.time_ns(), line_of_program()
            return no_sync(ddp)

        DistributedDataParallel.__init__ = noted_init  # type: ignore[assignment, method-assign]
        DistributedDataParallel.no_sync = wrapped(no_sync, entered)  # type: ignore[method-assign]
        try:
            yield
        finally:
            DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
            DistributedDataParallel.no_sync = no_sync  # type: ignore[method-assign]

    def entered(self) -> dict[int, tuple[int, str]]:
        """When and where the program entered `no_sync` last, by the id of the DDP module."""
        return {id(ddp): at for ddp, at in self._no_sync.items()}

    def own(self) -> None:
        """Let reports of collectives name the module whose gradients one carries, where there are several DDP modules.

        Not during a backward.
        """
        if len(self._made) < 2:
            return
        found: dict[tuple[str, int], list[str]] = {}
        for ddp in list(self._made):
            name = type(getattr(ddp.module, "_orig_mod", ddp.module)).__name__
            for size in torch_names.ddp_bucket_bytes(ddp):
                found.setdefault((ddp.process_group.group_name, size), []).append(name)
        introspect.owners |= {at: " or ".join(sorted(names)) for at, names in found.items()}

    def reasons(self, since_ns: int) -> dict[int, str]:
        """Say why gradients were not averaged, where that is proved.

        Torch's flight recorder has each all-reduce of a gradient; DDP notes its first forward.

        Args:
            since_ns: The `time.time_ns()` when the first recorded step began.

        Returns:
            A sentence, by the id of the DDP module.
        """
        known = introspect.collectives()
        return {
            id(ddp): said
            for ddp, place in self._made.items()
            if (said := self._why(ddp, place, known, since_ns))
        }

    def _why(self, ddp: Any, place: str, known: list[introspect.Collective] | None, since_ns: int) -> str:
        name = f"DDP ({place})" if place else "DDP"
        if torch_names.ddp_was_called(ddp) is False:
            return f"{name} was never called: the program calls what is in it (model.module); call the DDP object"
        if not known or known[0].time_ns > since_ns:  # none is kept over shm, and of many only the last
            return ""
        mine = [call for call in known if call.group == ddp.process_group.group_name and _averages(call, ddp)]
        last = max((call.time_ns for call in mine), default=0)
        entered, where = self._no_sync.get(ddp, (0, ""))
        if entered > max(last, since_ns):
            return (
                f"the last backward before optimizer.step ran under no_sync ({where}), so its gradients were not"
                " averaged: end no_sync before the forward and backward that optimizer.step follows"
            )
        if last < since_ns:
            return f"{name} averaged no gradient in the recorded steps: does the program call model.module instead?"
        return ""


def _averages(call: introspect.Collective, ddp: Any) -> bool:
    """Whether DDP called it for gradients: from C++, or in a hook that replaces its all-reduce."""
    hooked = bool(torch_names.ddp_hooks(ddp))
    return "broadcast" not in call.op if hooked else "reduce" in call.op and not call.called
