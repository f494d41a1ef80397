"""What a reader sees and does in JupyterLab: a whole lesson, the widgets, the live view, stop, and restart."""

from __future__ import annotations

import re
import time

import psutil
import pytest
from kernels import gone

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.kernel]

START = "%load_ext labkit\nimport labkit\nranks = labkit.Ranks(2, device='cpu', backend='gloo')"
HANG = """\
%%ranks
import time
import torch
import torch.distributed as dist
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1))
else:
    time.sleep(600)"""


def test_a_lesson_runs_from_top_to_bottom(notebook, times):
    began = time.monotonic()
    page = notebook("00_start_here.ipynb")
    count = len(page.cells())
    assert count > 10 and not any(cell["text"] for cell in page.cells())
    page.menu("Run", "runmenu:run-all")
    page.wait(lambda: page.picture(".labkit-live img"), 60, "the first picture")
    times["lesson open and first picture"] = time.monotonic() - began
    page.wait(lambda: page.ended(count - 1), 120, "the end of the last cell")
    times["lesson open and all run"] = time.monotonic() - began
    cells = page.cells()
    solutions = [cell for cell in cells if cell["folded"]]
    assert solutions and not any(cell["text"] for cell in solutions)
    numbers = [cell["prompt"] for cell in cells]
    assert numbers == ["" if cells[i]["folded"] else f"[{i + 1}]:" for i in range(count)]
    assert [cell["error"] for cell in cells] == [""] * count
    assert "rank 1 raised RuntimeError: rank 1 tripped" in "".join(cell["text"] for cell in cells)


def test_the_stop_button_ends_a_hanging_cell_and_a_long_call_shows_how_it_stands(notebook, times):
    add = "%%ranks\nimport torch\nimport torch.distributed as dist\nx = torch.ones(1)\ndist.all_reduce(x)\nx.item()"
    slow = "import time\n\n\ndef slow():\n    time.sleep(4)\n\n\nranks.run(slow);"
    page = notebook([START, HANG, add, slow])
    assert "2 ranks · gloo · cpu" in page.run(0)["text"]
    page.start(1)
    page.wait(lambda: "waiting in all_reduce" in page.cells()[1]["text"], 20, "rank 0's wait in all_reduce")
    assert page.cells()[1]["prompt"] == "[*]:"
    pressed = time.monotonic()
    page.button("interrupt")
    page.wait(lambda: page.ended(1), 20, "the end of the interrupted cell")
    times["stop button to the end of the cell"] = time.monotonic() - pressed
    shown = page.cells()[1]["error"]
    assert shown.startswith("KeyboardInterrupt")
    assert re.search(r"rank 0 was waiting in all_reduce here:\s+In \[2\]:6  dist.all_reduce", shown), shown
    assert re.search(r"rank 1 was here:\s+In \[2\]:8  time.sleep", shown), shown
    assert "All ranks were replaced" in shown
    after = page.run(2)
    assert after["error"] == "" and "2.0" in after["text"]

    page.start(3)
    running = page.wait(
        lambda: (found := page.cells()[3])["text"] and found, 20, "the view of the running call"
    )
    assert running["prompt"] == "[*]:"
    assert re.search(r"2 ranks · gloo · cpu: running, \d s", running["text"]), running
    assert re.search(r"rank 1\s+running at In \[4\]:5 \(slow\)", running["text"]), running
    page.shoot("a_long_call_while_it_runs", whole=True)
    ended = page.wait(lambda: page.ended(3), 20, "the end of the call")
    assert re.fullmatch(r"2 ranks · gloo · cpu: done, \d+ s", ended["text"].strip()), ended


def test_restart_leaves_no_process(notebook, times):
    ask = "import os\nprint(os.getpid(), *ranks.run(os.getpid).values(), ranks._pool.spawner.process.pid)"
    page = notebook([START, ask, HANG])
    page.run(0)
    kernel, *pids = map(int, page.run(1)["text"].split())
    below = psutil.Process(kernel).children(recursive=True)
    assert len(pids) == 3 and set(pids) <= {child.pid for child in below}
    page.start(2)
    page.wait(lambda: "waiting in all_reduce" in page.cells()[2]["text"], 20, "rank 0's wait in all_reduce")
    page.button("restart")
    pressed = time.monotonic()
    page.click(".jp-Dialog .jp-mod-accept")
    page.wait(lambda: gone([kernel], 0) == [], 10, "the old kernel's end")
    _, left = psutil.wait_procs(below, timeout=10)
    for child in left:
        child.kill()
    assert left == []
    times["restart to the last process's end"] = time.monotonic() - pressed
    page.idle()
    page.menu("Edit", "editmenu:clear-all")
    assert "2 ranks" in page.run(0)["text"]
    assert set(map(int, page.run(1)["text"].split())).isdisjoint({kernel, *pids})
