"""A saved run is followed by another process: lines as they come, its end, its failure, its silence."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pandas as pd
import pytest

import labkit
from labkit.experiments import progress
from labkit.report import Report


def report() -> Report:
    return Report("demo", "A demonstration", "gloo · cpu", {"main": pd.DataFrame({"ms": [1.5]})})


def test_lines_arrive_while_the_run_goes_on(tmp_path: Path) -> None:
    found: list[Report] = []
    heard: list[str] = []  # not printed: two threads and a captured stdout do not go together
    with progress.told(tmp_path, "demo") as save:
        follower = threading.Thread(
            target=lambda: found.append(labkit.attach(tmp_path, "demo", say=heard.append)), daemon=True
        )
        print("point 1 of 2")
        follower.start()
        deadline = time.monotonic() + 30
        while "point 1 of 2" not in heard and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not found  # it waits for the end
        print("half a li", end="")
        print("ne, whole now")
        save(report())
    follower.join(30)
    assert heard == ["point 1 of 2", "half a line, whole now"]
    assert found[0].title == "A demonstration" and found[0].label.startswith("recorded on")


def test_a_failure_reaches_who_follows(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="rank 1 died"), progress.told(tmp_path, "demo"):
        raise RuntimeError("rank 1 died")
    with pytest.raises(RuntimeError, match=r"the run of demo on .* failed: rank 1 died"):
        progress.attach(tmp_path, "demo")


def test_silence_is_an_end_too(tmp_path: Path) -> None:
    progress.running(tmp_path, "demo").write_text('{"host": "far", "pid": 7}\n{"li')
    with pytest.raises(RuntimeError, match=r"on far \(pid 7\) gave no sign of life"):
        progress.attach(tmp_path, "demo", silent=0.3)


def test_a_run_that_is_not_there_and_one_that_ended_long_ago(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no run of 'cliff' in .*: there is nothing"):
        progress.attach(tmp_path, "cliff")
    report().save(tmp_path)
    assert progress.attach(tmp_path, "demo").frame["ms"].tolist() == [1.5]
    with pytest.raises(ValueError, match="there is demo"):
        progress.attach(tmp_path, "cliff")


def test_what_cannot_be_written_does_not_end_the_run() -> None:
    class Full:
        def write(self, text: bytes) -> int:
            raise OSError("no space left")

    progress._Teller(Full()).tell(line="lost")  # type: ignore[arg-type]


def test_a_run_that_saved_nothing_says_so(tmp_path: Path) -> None:
    with progress.told(tmp_path, "demo"):
        pass
    with pytest.raises(RuntimeError, match="it saved no report"):
        progress.attach(tmp_path, "demo")
