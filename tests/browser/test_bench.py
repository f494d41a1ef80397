"""A bench and a prediction in JupyterLab, whichever way it sends the messages of widgets to the kernel."""

from __future__ import annotations

import browsers
import nbformat
import pytest
from browsers import Page, Server

from labkit.pace import patience
from tools import notebooks

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.kernel]

SETUP = """\
import labkit
from labkit.study import Bench, predict, reveal
ranks = labkit.Ranks(2, device="cpu", backend="gloo", quiet=True)
runs = []"""
RUN = """\
import os, time
import torch, torch.distributed as dist


def work(rank_1):
    if dist.get_rank() == 1 and rank_1 == "raises":
        raise ValueError("an odd <shape>")
    if dist.get_rank() == 1 and rank_1 == "sleeps":
        time.sleep(600)
    while rank_1 == "waits" and not os.path.exists("gate"):
        time.sleep(0.02)
    x = torch.ones(1) * (1 + dist.get_rank() * (rank_1 == "adds 2"))
    dist.all_reduce(x)
    return x.item()


def run(rank_1):
    runs.append(rank_1)
    return ranks.run(work, rank_1).same()


def draw(tries):
    return "".join(f"<div class='a-try'>{one.name} makes {one.result}</div>" for one in tries)"""
BENCH = """\
bench = Bench(
    run, draw, go="Run both ranks", predict=("Which sum?", ["2.0", "3.0"], str),
    rank_1=["adds 1", "adds 2", "waits", "sleeps", "raises"],
)
bench"""
# whether a button of the bench works; with a number of clicks, it gets so many in one turn of the page
BUTTON = """
const one = [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .labkit-live button')]
  .find(one => one.innerText.trim() === arguments[0])
if (!one || one.offsetParent === null || (one.disabled && !arguments[2])) return false
for (let i = 0; i < arguments[1]; i++) one.click()
return true"""
SENTENCE = """
const box = document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .labkit-live')
return box ? getComputedStyle(box, '::before').content : ''"""
SEEN = """
return [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) ' + arguments[0])]
  .filter(one => one.offsetParent !== null).map(one => one.innerText.trim())"""


@pytest.fixture(scope="module", params=["perCommTarget", "disabled"])
def lab(request, browser, tmp_path_factory):
    """JupyterLab that sends the messages of widgets to a thread of the kernel (its default), or to the main one."""
    home = tmp_path_factory.mktemp("jupyter")
    (folder := home / "work").mkdir()
    setting = "apputils-extension/kernels-settings"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(browsers.SETTINGS, setting, {"commsOverSubshells": request.param})
        patch.setenv("LABKIT_HOME", str(home / "labkit"))
        server = Server(folder, home)
    yield server, request.param
    server.close()


def written(server: Server, name: str, cells: list[str]):
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    made = [nbformat.v4.new_code_cell(source) for source in cells]
    path = server.folder / f"{name}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel}), path)
    return path


class Worked:
    """A bench on a page, as its reader sees and works it."""

    def __init__(self, page: Page):
        self.page = page

    def can(self, text: str) -> bool:
        return self.page.driver.execute_script(BUTTON, text, 0)

    def press(self, text: str, times: int = 1) -> None:
        pressed = lambda: self.page.driver.execute_script(BUTTON, text, times)  # noqa: E731
        self.page.wait(pressed, patience(20), f"a button {text!r} that works")

    def tries(self) -> list[str]:
        return self.page.driver.execute_script(SEEN, ".labkit-live .a-try")

    def said(self) -> str:
        return "\n".join(self.page.driver.execute_script(SEEN, ".labkit-live .widget-html-content"))

    def says(self, words: str) -> None:
        self.page.wait(lambda: words in self.said(), patience(60), f"{words!r} in the bench")

    def play(self, rank_1: str, guess: str, clicks: int = 1) -> None:
        """Choose, predict, and start the run."""
        self.press(rank_1)
        self.page.wait(lambda: not self.can("Run both ranks"), patience(20), "the lock of a new choice")
        self.says("choose what you expect")
        self.press(guess)
        self.press("Run both ranks", clicks)


def value(page: Page, cell: int) -> str:
    return page.run(cell, patience(60))["text"].strip()


def test_a_bench_is_worked(lab, browser):
    server, mode = lab
    (server.folder / "gate").unlink(missing_ok=True)
    path = written(
        server, f"bench_{mode}", [SETUP, RUN, BENCH, "runs", "bench.every('rank_1', ['adds 1', 'adds 2'])"]
    )
    page = Page(server, path.name, browser)
    for cell in range(3):
        assert page.run(cell, patience(120))["error"] == ""
    bench = Worked(page)
    bench.says("rank 1: adds 1 makes 2.0")
    page.shoot(f"bench_{mode}_first", whole=True)
    assert (
        page.driver.execute_script(SEEN, ".labkit-twin *") == []
    )  # it stands for the widgets where there are none
    assert not bench.can("Run both ranks") and not bench.can("Stop")
    page.driver.execute_script(BUTTON, "Run both ranks", 1, "locked or not")
    bench.play("adds 2", "2.0")
    bench.says("no: you said 2.0, it was 3.0")
    assert bench.tries() == ["rank 1: adds 1 makes 2.0", "rank 1: adds 2 makes 3.0"]
    assert value(page, 3) == "['adds 1', 'adds 2']"  # the click before the prediction ran nothing

    bench.play("waits", "2.0", clicks=3)
    bench.says("the first run with these values")
    page.shoot(f"bench_{mode}_runs", whole=True)
    assert not bench.can("adds 1") and not bench.can("2.0") and bench.can("Stop")
    assert value(page, 3) == "['adds 1', 'adds 2', 'waits']"  # another cell ran beside it
    (server.folder / "gate").touch()
    bench.says("yes: you said 2.0, it was 2.0")
    assert len(bench.tries()) == 3 and value(page, 3) == "['adds 1', 'adds 2', 'waits']"

    bench.play("sleeps", "3.0")
    bench.says("the first run with these values")
    bench.press("Stop")
    bench.says("stopped; the tries before stay")
    assert len(bench.tries()) == 3
    bench.play("raises", "3.0")
    bench.says("rank 1 raised ValueError: an odd <shape>")
    assert "Traceback" not in bench.said() and len(bench.tries()) == 3
    page.shoot(f"bench_{mode}_error", whole=True)
    page.click(".labkit-live summary")
    bench.says("Traceback (most recent call last)")
    bench.play("adds 1", "2.0")
    bench.says("yes: you said 2.0, it was 2.0")
    assert [one.split()[2:4] for one in bench.tries()] == [["adds", "2"], ["waits", "makes"], ["adds", "1"]]
    page.shoot(f"bench_{mode}_tries", whole=True)

    assert page.run(4, patience(60))["text"].strip() == "All answers"
    page.shoot(f"bench_{mode}_folded", whole=True)
    page.menu("File", "docmanager:save")
    page.wait(lambda: "makes 3.0" in path.read_text(), patience(20), "the saved file")
    page = Page(server, path.name, browser)  # the same kernel
    bench = Worked(page)
    bench.says("rank 1: adds 1 makes 2.0")
    bench.play("adds 2", "3.0")
    bench.says("yes: you said 3.0, it was 3.0")

    page.button("restart")
    page.click(".jp-Dialog .jp-mod-accept")
    said = page.wait(lambda: page.driver.execute_script(SENTENCE), patience(30), "the sentence on the kernel")
    assert "Run this cell again" in said
    page.idle()
    page.shoot(f"bench_{mode}_restarted", whole=True)
    page = Page(server, path.name, browser)
    twin = page.wait(lambda: page.driver.execute_script(SEEN, ".labkit-twin"), patience(30), "the twin")
    assert (
        "Run this cell in JupyterLab to change: rank 1 (adds 1, adds 2, waits" in twin[0]
        and "makes 2.0" in twin[0]
    )
    page.shoot(f"bench_{mode}_reopened", whole=True)
    page.leave()


PREDICT = """\
from labkit.study import predict, reveal
predict("a.graphs_on_rank_0", unit="graphs")"""
CHOOSE = 'predict("a.how_it_ends", options=["it hangs", "it raises"])'


def test_a_prediction_is_given_and_the_keyboard_goes_on(lab, browser):
    from selenium.webdriver import ActionChains, Keys

    server, mode = lab
    cells = [PREDICT, CHOOSE, "(reveal('a.graphs_on_rank_0', 4), reveal('a.how_it_ends', 'it hangs'))"]
    path = written(server, f"predict_{mode}", [*cells, "reveal('a.how_it_ends', 'it hangs', fold=True)"])
    notebooks.execute(path)  # as lessons are saved
    page = Page(server, path.name, browser)
    before = [cell["text"].strip() for cell in page.cells()]
    assert before[:2] == [
        "Your prediction: graphs on rank 0? (graphs) Run this cell to answer.",
        "Your prediction: how it ends? (it hangs or it raises) Run this cell to answer.",
    ]
    assert before[3] == "What was measured"
    page.shoot(f"predict_{mode}_saved", whole=True)
    page.start(0)
    bench = Worked(page)
    bench.says("fine, just run on")

    def typed(text: str) -> None:
        field = page.find(".labkit-live input")
        field.clear()
        field.send_keys(text, Keys.ENTER)

    typed("many")
    bench.says("a prediction is a finite number")
    typed("2")
    bench.says("you predict 2 graphs")
    where = "return document.activeElement.innerText"
    page.wait(
        lambda: page.driver.execute_script(where) == "Keep", patience(20), "the keyboard out of the field"
    )
    keys = ActionChains(page.driver)
    for _ in range(2):  # this cell again, and the next one
        keys.key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT)
    keys.perform()
    bench.says("how it ends?")
    bench.says("you predict 2 graphs")
    bench.press("it raises")
    bench.says("you predict it raises")
    page.shoot(f"predict_{mode}_answered", whole=True)
    page.start(2)
    page.wait(lambda: "you predicted 2" in page.cells()[2]["text"], patience(20), "what was measured")
    found = page.cells()[2]["text"]
    assert "measured: 4 graphs; you predicted 2" in found and "you predicted it raises: wrong" in found
    page.button("restart")
    page.click(".jp-Dialog .jp-mod-accept")
    said = page.wait(lambda: page.driver.execute_script(SENTENCE), patience(30), "the sentence on the kernel")
    assert "Run this cell again" in said
    page.idle()
    page.shoot(f"predict_{mode}_restarted", whole=True)
    page.leave()
