"""The overlap experiment once more, on a slow link that only it sees."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from labkit.report import Report

__all__ = ["shaped"]

TIMEOUT_S = 240.0


def shaped(mbit: int = 1000, *, mib: float = 4.0, rounds: int = 7) -> Report | str:
    """The experiment on a link of so many Mbit/s, in a network of its own, so that the host's stays as it is.

    Returns the Report, labelled with the rate, or the sentence that says why this machine cannot: it takes Linux, the
    right to make network namespaces, and the tools `unshare`, `ip` and `tc`.
    """
    missing = [tool for tool in ("unshare", "ip", "tc") if not shutil.which(tool)]
    if missing:
        return f"no shaped link here: {', '.join(missing)} is missing"
    shape = f"ip link set lo up && tc qdisc add dev lo root tbf rate {mbit}mbit burst 256kb latency 400ms"
    with tempfile.TemporaryDirectory(prefix="labkit-shaped-") as folder:
        labkit = [sys.executable, "-m", "labkit", "run", "overlap", "--device", "cpu", "--save", folder]
        command = [*labkit, "--brief", "--mib", str(mib), "--rounds", str(rounds)]
        root = str(Path(__file__).resolve().parents[2])
        script = f'{shape} && cd "$0" && exec env GLOO_SOCKET_IFNAME=lo "$@"'
        try:
            done = subprocess.run(
                ["unshare", "-n", "sh", "-c", script, root, *command],
                capture_output=True, text=True, timeout=TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no shaped link here: it did not come to an end in {TIMEOUT_S:g} s"
        saved = list(Path(folder).rglob("overlap.json"))
        if done.returncode or not saved:
            lines = (done.stderr or done.stdout).strip().splitlines()
            return f"no shaped link here: {lines[-1][:160] if lines else 'it failed without a word'}"
        report = Report.from_json(saved[0].read_text(encoding="utf-8"))
    label = f"{report.label} · {mbit / 1000:g} Gbit/s"
    return replace(report, label=label)
