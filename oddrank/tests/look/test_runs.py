"""A run of `oddrank look` in a process of its own: how it ended, and that nothing of it outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from oddrank.look import processes, values
from processes import left

SCRIPTS = Path(__file__).parent / "scripts"


def eventually(what, seconds=120.0):
    until = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def test_an_interpreter_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ValueError, match="cannot start nowhere/python: No such file"):
        processes.run(["nowhere/python"], ["train.py"], tmp_path / "one")


def test_a_request_that_cannot_be_met_is_the_error_of_the_run(tmp_path):
    ran = processes.run([sys.executable], ["nowhere.py"], tmp_path / "one")
    assert (ran.status, ran.looked) == (2, None)
    assert ran.headline == ran.error == "oddrank: there is no script nowhere.py"


@pytest.mark.slow
def test_the_error_of_a_script_is_that_of_its_ranks_and_what_was_recorded_is_there(tmp_path):
    words = ["--skip", "1", "--steps", "2", "--values", str(SCRIPTS / "trouble.py"), "raise"]
    ran = processes.run([sys.executable], words, tmp_path / "one")
    assert ran.status == 3 and ran.headline == "rank 1 raised ValueError: the loss is nan"
    assert "(trouble)  raise ValueError" in ran.error
    assert ran.looked is not None and ran.looked.steps == 2 and ran.seconds > 0
    assert sorted(values.load(ran.folder)) == [0, 1]
    assert "rank 1 raised" in (tmp_path / "one.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_process_that_began_it(number, tmp_path):
    mark = f"LABKIT_TEST_RUNS={os.getpid()}-{time.time()}"
    program = (
        "import sys; from pathlib import Path; from oddrank.look import processes as runs;"
        " runs.run([sys.executable], ['--stall', '300', *sys.argv[2:]], Path(sys.argv[1]))"
    )
    words = [str(tmp_path / "one"), str(SCRIPTS / "trouble.py"), "hang"]
    env = os.environ | dict([mark.split("=", 1)])
    parent = subprocess.Popen([sys.executable, "-c", program, *words], env=env, stderr=subprocess.DEVNULL)
    try:
        # both ranks have recorded, so rank 1 ignores all signals but one
        assert eventually(lambda: len(list((tmp_path / "one").glob("rank-*.json"))) == 2)
        assert len(left(mark)) >= 4, "this one, the command, and its ranks"
        parent.send_signal(number)
        parent.wait(30)
        assert eventually(lambda: not left(mark), 20), left(mark)
    finally:
        parent.kill()
