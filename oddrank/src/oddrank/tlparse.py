"""tlparse, where it is installed: torch's own report of what `TORCH_TRACE` has recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["report", "tool"]

LIMIT_S = 120.0


def tool() -> str | None:
    """The path of tlparse, beside this Python or on the PATH; None where it is not installed."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    return shutil.which("tlparse", path=path)


def report(traces: Path, out: Path) -> str:
    """Let tlparse make its report of all ranks.

    Args:
        traces: the folder of the traces; their names hold the ranks, as torch writes them.
        out: where the report goes; what was there before goes.

    Returns:
        '' where `out/index.html` was made, or a sentence that says why it was not.
    """
    if (path := tool()) is None:
        return "tlparse is not installed: pip install tlparse"
    shutil.rmtree(out, ignore_errors=True)
    try:
        done = subprocess.run(
            [path, "--all-ranks-html", "--no-browser", "-o", str(out), str(traces)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"tlparse took more than {LIMIT_S:.0f} s"
    except OSError as error:
        return f"tlparse could not be run: {error.strerror or error}"
    if not done.returncode and (out / "index.html").is_file():
        return ""
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    return (
        f"tlparse made no report: {said.splitlines()[-1][:200] if said else f'exit status {done.returncode}'}"
    )
