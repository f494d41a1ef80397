"""The progress of a long start or call, shown below the running cell: the time so far, and what each rank is doing.

It is one output that is updated, HTML with a plain-text version. It needs no messages from the front end, so it works
while the kernel is busy with the call.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from labkit.ranks.cells import shell
from labkit.ranks.pool import Member

METADATA = {"labkit": "live"}  # by this, saved lessons leave the output out
START_S = 1.0  # a start that takes longer says what it waits for


class Progress:
    """Shows the progress of a group's start and long calls.

    Args:
        title: What the ranks run on.
        wanted: Whether to show anything.
    """

    def __init__(self, title: str, wanted: bool = True):
        self.title = title
        self.wanted = wanted and _in_kernel()
        self.cell: Any = None
        self.handle: Any = None
        self.shown = False
        self.seconds = 0.0
        self.states: list[tuple[str, str]] = []

    @contextmanager
    def of_start(self, what: str) -> Iterator[Callable[[float], None]]:
        """Yield what is called with the seconds so far: it shows what a start waits for, from the second second on."""
        how, last = "not started", 0.0

        def waiting(seconds: float) -> None:
            nonlocal last
            last = seconds
            if seconds >= START_S:
                self._show([("waits for", what)], seconds, "starting")

        try:
            yield waiting
            how = "started"
        finally:
            self.end(how, last)

    def show(self, members: Sequence[Member], seconds: float) -> None:
        """Show what each rank is doing, `seconds` after the call began."""
        self._show([(f"rank {m.rank}", m.state) for m in members], seconds)

    def _show(self, states: list[tuple[str, str]], seconds: float, how: str = "running") -> None:
        if not self.wanted or threading.current_thread() is not threading.main_thread():
            return  # a thread's output would land in whichever cell runs now; a bench has a line of its own
        self.seconds, self.states = seconds, states
        self._display(how)
        self.shown = True

    def end(self, how: str, seconds: float) -> None:
        """Leave one line that says how the start or call ended after `seconds`, if anything was shown."""
        if self.shown:
            self.seconds, self.states, self.shown = seconds, [], False
            self._display(how)

    def text(self, how: str = "running") -> str:
        """Return the plain-text version.

        >>> progress = Progress("2 ranks · gloo · cpu", wanted=False)
        >>> progress.states = [("rank 0", "finished"), ("rank 1", "compiling at In [5]:3 (step)")]
        >>> progress.seconds = 12.4
        >>> print(progress.text())
        2 ranks · gloo · cpu: running, 12 s
          rank 0  finished
          rank 1  compiling at In [5]:3 (step)
        """
        head = f"{self.title}: {how}, {self.seconds:.0f} s"
        return "\n".join([head, *(f"  {who}  {state}" for who, state in self.states)])

    def _html(self, how: str) -> str:
        cell = "text-align:left;padding:0 14px 0 0;border:none;background:none"
        rows = "".join(
            f'<tr style="background:none"><td style="{cell}">{who}</td><td style="{cell};font-family:monospace">'
            f"{html.escape(state)}</td></tr>"
            for who, state in self.states
        )
        head = f"<div>{html.escape(self.title)}: <b>{how}</b>, {self.seconds:.0f} s</div>"
        table = f"<table style='margin:0'>{rows}</table>" if rows else ""
        return f'<div style="opacity:0.75;font-size:90%">{head}{table}</div>'

    def _display(self, how: str = "running") -> None:
        from IPython.display import display

        data = {"text/plain": self.text(how), "text/html": self._html(how)}
        cell = getattr(shell(), "execution_count", None)
        if self.handle is None or cell != self.cell:  # one output a cell, however many calls it makes
            self.cell = cell
            self.handle = display(data, raw=True, display_id=True, metadata=METADATA)
        else:
            self.handle.update(data, raw=True, metadata=METADATA)


def _in_kernel() -> bool:
    return getattr(shell(), "kernel", None) is not None
