"""The progress of a run that is being saved, written to a file that another process can follow.

`labkit run NAME --save DIR` appends to `DIR/NAME.running.jsonl`: who runs it, each line that it prints, a sign of life,
and the end. `attach` reads that file, in a notebook on any machine that sees the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from labkit.report import Report

__all__ = ["attach", "told"]

ALIVE_S = 5.0  # between two signs of life
SILENT_S = 30.0  # without one a run is taken for dead


@contextlib.contextmanager
def told(folder: str | os.PathLike[str] | None, name: str) -> Iterator[Callable[[Report], Path | None]]:
    """Write what this process prints while it runs an experiment to a file; an error inside is written, too, and raised
    again.

    Args:
        folder: of the file; None writes nothing.
        name: of the experiment.

    Returns:
        A context manager that gives the function which saves the report.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with told(folder, "demo") as save:
    ...         print("half of it")
    ...     [sorted(json.loads(line))[0] for line in open(f"{folder}/demo.running.jsonl")]
    half of it
    ['host', 'line', 'ended']
    """
    if folder is None:
        yield lambda report: None
        return
    path = running(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb", buffering=0) as out:  # nothing is left to be written when it is closed
        teller = _Teller(out)
        teller.tell(host=socket.gethostname(), pid=os.getpid(), started=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        screen, sys.stdout = sys.stdout, _Both(sys.stdout, teller)
        beat = threading.Thread(target=teller.beat, daemon=True, name="labkit-alive")
        beat.start()
        end = {"ended": "it saved no report"}

        def save(report: Report) -> Path:
            saved = report.save(folder)
            end.update(ended="", saved=saved.name)
            return saved

        try:
            yield save
        except BaseException as error:
            end = {"ended": str(error) or type(error).__name__}
            raise
        finally:
            sys.stdout = screen
            teller.over.set()
            beat.join()
            teller.tell(**end)


def running(folder: str | os.PathLike[str], name: str) -> Path:
    """The path of the progress file of an experiment that is saved in `folder`."""
    return Path(folder) / f"{name.replace('/', '-')}.running.jsonl"


class _Teller:
    def __init__(self, out: IO[bytes]):
        self.out, self.over, self.lock = out, threading.Event(), threading.Lock()

    def tell(self, **said: Any) -> None:
        # a full disk must not end the run that is told about
        with self.lock, contextlib.suppress(OSError):
            self.out.write((json.dumps(said, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))

    def beat(self) -> None:
        while not self.over.wait(ALIVE_S):
            self.tell(alive=True)


class _Both:
    """A stream that prints as before and writes whole lines to the progress file."""

    def __init__(self, screen: Any, teller: _Teller):
        self._screen, self._teller, self._rest = screen, teller, ""

    def write(self, text: str) -> int:
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            self._teller.tell(line=line.rsplit("\r", 1)[-1])
        return self._screen.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._screen, name)


def attach(
    folder: str | os.PathLike[str], name: str, silent: float = SILENT_S, say: Callable[[str], Any] = print
) -> Report:
    """Follow a run that is being saved: print what it prints, and return its report.

    A run that has ended gives its report at once. Interrupting ends the following, not the run.

    Args:
        folder: where the run saves.
        name: of the experiment.
        silent: seconds without a sign of life after which the run counts as dead.
        say: called with each line.

    Returns:
        The report.

    Raises:
        ValueError: there is no such run.
        RuntimeError: the run failed, or gave no sign of life.

    >>> import pandas as pd, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with told(folder, "demo") as save:
    ...         path = save(Report("demo", "A demonstration", "gloo · cpu", {"main": pd.DataFrame({"ms": [1.5]})}))
    ...     attach(folder, "demo").title
    'A demonstration'
    """
    path, saved = running(folder, name), Path(folder) / f"{name}.json"
    if not path.exists():
        if saved.exists():
            return Report.load(saved)
        there = sorted({p.name.split(".")[0] for p in Path(folder).glob("*.json*")}) or ["nothing"]
        raise ValueError(f"no run of {name!r} in {folder}: there is {', '.join(there)}")
    heard, about = time.monotonic(), {}
    with open(path, encoding="utf-8") as lines:
        rest = ""
        while True:
            rest += (piece := lines.readline())
            if rest.endswith("\n"):
                said, rest, heard = json.loads(rest), "", time.monotonic()
                if "line" in said:
                    say(said["line"])
                elif "ended" in said:
                    break
                elif "host" in said:
                    about = said
            elif not piece:
                if time.monotonic() - heard > silent:
                    raise RuntimeError(
                        f"the run of {name} on {about.get('host', '?')} (pid {about.get('pid', '?')}) gave no sign of "
                        f"life for {silent:.0f} s: it or its machine is gone; nothing was saved by it"
                    )
                time.sleep(0.1)
    if said["ended"]:
        raise RuntimeError(f"the run of {name} on {about.get('host', '?')} failed: {said['ended']}")
    return Report.load(Path(folder) / said["saved"])
