"""What one rank's switches did in a run, counted as torch does it: passes, DDP's cuts, FSDP2's gathers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pandas as pd

from oddrank import torch_names
from oddrank.look.callables import Made, line_of_stack

__all__ = ["REWRITTEN", "TYPES", "Seen"]

TYPES = {"rank": "int64", "switch": "str", "value": "str", "compile": "str"}
TYPES |= {"before": "str", "after": "str", "note": "str", "times": "int64"}
REWRITTEN = "in-place collective with a gradient"
_SWITCHES = {name: switch for switch, name in torch_names.PASSES.items()}
Original = Callable[..., Any]


class Seen:
    """Counts what switches do on this rank, from `attach` to `close`.

    Args:
        enters: Called before FSDP2 gathers parameters for a forward.
    """

    def __init__(self, enters: Callable[[], None]) -> None:
        self._enters = enters
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._hooks: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._ddp: dict[str, Callable[[], Any]] = {}
        self._buckets: dict[str, int] = {}
        self._there: set[str] = set()
        self._undo = contextlib.ExitStack()

    def attach(self, inductor: bool) -> None:
        """Wrap what is imported by now, and Inductor, which is imported for it, where it is the backend."""
        every = {"ddp": torch_names.ddp_optimizer_points, "fsdp": torch_names.fsdp_points}
        every |= {"graph": torch_names.graph_point}
        every |= {"inductor": torch_names.inductor_points} if inductor else {}
        for name in every.keys() - self._there:
            points = every[name]()
            self._there |= {name} if points else set()
            for kind, original, replace in points:
                if original is not None:
                    self._undo.enter_context(replace(self._around(original, getattr(self, f"_{kind}"))))

    def close(self) -> None:
        """Leave torch as it was."""
        self._undo.close()

    def called(self) -> None:
        """Note switches that nothing but their value shows, at a call of a compiled object."""
        if name := torch_names.one_rank_switch():
            self._counts[name, "True", "", "", "", ""] = 1
        if (mode := torch_names.ddp_optimizer_mode()) is not True:
            self._counts["optimize_ddp", str(mode), "", "", "", ""] = 1

    def table(self, made: list[Made]) -> pd.DataFrame:
        """Make the table of what was seen; its columns are those of `TYPES`, without rank."""
        for compile_id, held in self._ddp.items():
            if (ddp := held()) is not None:  # at the end it may be gone
                self._buckets[compile_id] = torch_names.ddp_buckets(ddp)
        rows: list[tuple[Any, ...]] = []
        for (switch, value, compile_id, before, *rest), count in self._counts.items():
            if switch == "DDPOptimizer":
                before = str(self._buckets.get(compile_id, 0))
            rows.append((switch, value, compile_id, before, *rest, count))
        for one in made:
            module = one.module()
            if one.calls and module is not None and torch_names.is_sharded(module):
                runs = self._hooks.get(module, 0)
                rows.append(
                    ("FSDP2 hooks", f"{one.name} at {one.place}", "", str(one.calls), str(runs), "", 1)
                )
        return pd.DataFrame(rows, columns=[name for name in TYPES if name != "rank"])

    def _say(self, switch: str, value: str = "", before: str = "", after: str = "", note: str = "") -> None:
        self._counts[switch, value, torch_names.current_compile_id(), before, after, note] += 1

    def _around(self, original: Original, around: Callable[..., Any]) -> Original:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs:  # what stands around it takes by position what torch may give by name
                bound = signature.bind(*args, **kwargs)
                args, kwargs = bound.args, bound.kwargs
            return around(original, *args, **kwargs)

        torch_names.hide_from_dynamo(call.__code__)  # type: ignore[attr-defined]
        return call

    # --- Dynamo ---

    def _graph(self, original: Original, graph: Any, module: Any, *args: Any) -> Any:
        with contextlib.suppress(Exception):  # the compile goes on
            for one in torch_names.rewritten_collectives(module):
                self._say(REWRITTEN, one.call, before=line_of_stack(one.stack))
        return original(graph, module, *args)

    # --- Inductor ---

    def _graph_pass(self, original: Original, observer: Any, work: Any) -> Any:
        graph = observer.gm.graph
        if observer.passname == "stable_sort":  # runs once for every graph
            self._say("runtime lookups", before=str(torch_names.runtime_lookups(graph)))
        return self._compare(observer.passname, graph, lambda: original(observer, work))

    def _compare(self, name: str, graph: Any, run: Callable[[], Any]) -> Any:
        if name not in _SWITCHES:
            return run()
        before = torch_names.collectives_of(graph)
        found = run()
        self._say(_SWITCHES[name], before=before, after=torch_names.collectives_of(graph))
        return found

    def _post_compile(self, original: Original, graph: Any, *args: Any) -> Any:
        for switch, value in torch_names.inductor_settings().items():
            if value not in (None, False, "none"):
                self._say(switch, repr(value), note="on")
        return original(graph, *args)

    # --- DDP and FSDP2 ---

    def _split(self, original: Original, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(optimizer, *args, **kwargs)
        if (ddp := torch_names.active_ddp()) is not None:
            self._ddp[torch_names.current_compile_id()] = weakref.ref(ddp)
        self._say("DDPOptimizer", after=str(len(optimizer.buckets)))
        return found

    def _pre_forward(self, original: Original, group: Any, module: Any, *args: Any) -> Any:
        self._enters()
        self._hooks[module] = self._hooks.get(module, 0) + 1
        return original(group, module, *args)

    def _unshard(self, original: Original, group: Any, *args: Any, **kwargs: Any) -> Any:
        before = torch_names.gathers(group)
        found = original(group, *args, **kwargs)
        if not before and torch_names.gathers(group):
            self._say("fsdp gather")
        return found

    def _prefetch(self, original: Original, group: Any, way: str) -> Any:
        before, held = torch_names.gathers(group), group.is_unsharded
        found = original(group, way)
        began = not before and torch_names.gathers(group)
        why = "its parameters were gathered already" if held else "its gather was under way already"
        # backwards prefetch by themselves too: here the caller is a state in which the program named modules
        if torch_names.named_for_prefetch(sys._getframe(2).f_locals.get("self"), way):
            self._say(f"{way} prefetch", after="began" if began else "nothing", note="" if began else why)
        return found


torch_names.hide_from_dynamo(Seen.called.__code__, calls=True)
