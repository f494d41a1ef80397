"""What Linux says of a process: its state, and the processor time that it has used."""

from __future__ import annotations

import os
import select
import signal
import threading
from pathlib import Path

__all__ = ["IDLE", "computed", "end_with", "stat"]

IDLE = 0.02  # of a core; gloo's own threads wake up now and then


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; [''] for what has ended and no Linux."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        text = ""
    return text.rpartition(")")[2].split() or [""]


def computed(fields: list[str]) -> float:
    """Processor seconds, user and system, from what `stat` returns."""
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def end_with(lifeline: int) -> None:
    """Kill this process' group as soon as the other end of a pipe is closed.

    Args:
        lifeline: The read end of the pipe.
    """

    def watch() -> None:
        poller = select.poll()
        poller.register(lifeline, select.POLLIN)
        poller.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="oddrank-lifeline").start()
