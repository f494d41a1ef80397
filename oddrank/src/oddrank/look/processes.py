"""A run of `oddrank look` in a process of its own, under any interpreter, which ends with the process that began it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oddrank.look import look
from oddrank.look.command import FAILURE
from oddrank.look.look import Look

__all__ = ["Ran", "bound", "run"]

LIMIT_S = 600.0  # that a script may take, unless it is said
AROUND_S = 120.0  # for what is around it: the import of torch, the page and tlparse's report
COLLECTIVES = "2000"  # that torch's flight recorder keeps, all groups together
# the process and whatever it has started end as soon as this one does
_START = (
    "import sys; from oddrank.live.proc import end_with; end_with(int(sys.argv[1])); from oddrank.command import main;"
    " sys.exit(main(['look', *sys.argv[2:]]))"
)


@dataclass(frozen=True)
class Ran:
    """A run of a script.

    Attributes:
        folder: Where its page and its data are.
        status: The exit status of `oddrank look`; negative for a signal.
        error: Why it failed, as `oddrank look` says it, with the lines of the ranks; '' where it did not.
        seconds: How long the process took.
        looked: What its ranks recorded; None where they recorded no step.
    """

    folder: Path
    status: int
    error: str
    seconds: float
    looked: Look | None

    @property
    def headline(self) -> str:
        """The error in one line; '' for none."""
        lines = self.error.splitlines() or [""]
        return next((line for line in lines if " raised " in line), lines[0])


def bound(runs: int, limit: float = LIMIT_S) -> str:
    """Say how many runs there will be, and how long they may take.

    >>> bound(4, 600)
    '4 runs, one after another; each may take 12 minutes, all of them 48'
    """
    each = (limit + AROUND_S) / 60
    return f"{runs} runs, one after another; each may take {each:.0f} minutes, all of them {runs * each:.0f}"


def run(
    python: Sequence[str],
    words: Sequence[str],
    folder: Path,
    env: Mapping[str, str] | None = None,
    limit: float = LIMIT_S,
) -> Ran:
    """Run `oddrank look` on a script, with compile caches of its own, which are empty.

    What it prints goes to `FOLDER.log`.

    Args:
        python: The command of an interpreter that can import torch and oddrank.
        words: Options of `oddrank look` but `--out` and `--timeout`, then the script with its arguments.
        folder: A new one.
        env: The environment variables; None for those of this process.
        limit: Seconds that the script may take.

    Returns:
        How it ended. A script that fails is no error here.

    Raises:
        ValueError: The interpreter cannot be started.
    """
    log = folder.with_name(f"{folder.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    began, (reading, lifeline) = time.monotonic(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="oddrank-") as cache, log.open("wb") as out:
        own = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
        own |= {"TORCH_FR_BUFFER_SIZE": COLLECTIVES}
        asked = ["--timeout", f"{limit:g}", "--out", str(folder.absolute()), *words]
        try:
            process = subprocess.Popen(
                [*python, "-c", _START, str(reading), *asked],
                pass_fds=[reading],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**(os.environ if env is None else env), **own},
                start_new_session=True,
            )
        except OSError as refused:
            os.close(lifeline)
            raise ValueError(f"cannot start {python[0]}: {refused.strerror or refused}") from None
        finally:
            os.close(reading)
        try:
            status = process.wait(limit + AROUND_S)
            late = ""
        except subprocess.TimeoutExpired:
            late = f"it did not end within {limit + AROUND_S:.0f} s, and was ended"
        finally:
            os.close(lifeline)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
    error = late or (_error(folder, log) if status else "")
    looked = None
    with contextlib.suppress(ValueError):  # a record of which a rank wrote half
        looked = look.read(folder)
    return Ran(folder, status, error, time.monotonic() - began, looked if looked and looked.steps else None)


def _error(folder: Path, log: Path) -> str:
    """What the command said: of its script where that failed, or its last line."""
    with contextlib.suppress(OSError):
        return (folder / FAILURE).read_text(encoding="utf-8", errors="replace").strip()
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
