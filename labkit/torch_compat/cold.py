"""Compile caches, the phases of a compile, and the artifacts that a compile can leave for another process."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

from oddrank.torch_names import replaced, require, trace_logger


def break_reasons() -> dict[str, int]:
    """Read how many graph breaks Dynamo has counted in this process, by torch's text of the reason."""
    return dict(require("torch._dynamo.utils.counters")["graph_break"])


def cache_hits() -> int:
    """Read how many graphs Inductor has counted in this process that it took from its cache."""
    return int(require("torch._dynamo.utils.counters")["inductor"]["fxgraph_cache_hit"])


CPU_CHECK = "VecISA.check_build"  # the name of labkit's own event, see compile_events


@contextlib.contextmanager
def compile_events() -> Iterator[list[tuple[float, str, str, int]]]:
    """Collect the events of torch's own compile phases in a block.

    They are what `dynamo_timed` writes into the structured trace as 'chromium_event' (torch/_dynamo/utils.py,
    ChromiumEventLogger); the thread is the one that reports it. One event is added, `CPU_CHECK`: Inductor's check
    whether a vector instruction set works here, which loads a small library in a child process
    (`VecISA.check_build` in torch/_inductor/cpu_vec_isa.py). torch counts it as code generation.

    Yields:
        A list of (seconds since the epoch, 'B' for begin or 'E' for end, name, thread), which grows in the block.
    """
    logger, seen = trace_logger(), []  # type: tuple[logging.Logger, list[tuple[float, str, str, int]]]

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "chromium_event" not in (getattr(record, "metadata", None) or {}):
                return
            payload: Any = getattr(record, "payload", None)
            said = json.loads(payload() if callable(payload) else payload or "{}")
            if said.get("ph") in ("B", "E"):
                seen.append((said["ts"] / 1e6, said["ph"], said["name"], threading.get_ident()))

    require("torch._dynamo.utils.ChromiumEventLogger")
    check = require("torch._inductor.cpu_vec_isa.VecISA.check_build")

    def checked(*arguments: Any, **keywords: Any) -> Any:
        seen.append((time.time(), "B", CPU_CHECK, threading.get_ident()))
        try:
            return check(*arguments, **keywords)
        finally:
            seen.append((time.time(), "E", CPU_CHECK, threading.get_ident()))

    listener, level, passed_on = Listener(logging.DEBUG), logger.level, logger.propagate
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        with replaced("torch._inductor.cpu_vec_isa.VecISA.check_build", checked):
            yield seen
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
        logger.propagate = passed_on
