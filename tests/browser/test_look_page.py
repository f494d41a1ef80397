"""The page of `labkit look` in Chromium: the strip is zoomed, moved and searched, and nothing is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from browsers import ARTIFACTS, ROOT, chromium, end, missing

from conftest import need_browser
from labkit import cli

SCRIPT = ROOT / "tests" / "look" / "scripts" / "groups.py"
pytestmark = pytest.mark.browser
# where on the canvas the pixels of a colour stand, from left to right; null for none
FIND = """
const canvas = document.querySelector('.viewer canvas'), scale = canvas.width / canvas.clientWidth
const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data
const [r, g, b] = arguments[0].match(/\\w\\w/g).map(part => parseInt(part, 16))
let first = null, count = 0
for (let x = 0; x < canvas.width; x++) for (let y = 0; y < canvas.height; y++) {
  const at = 4 * (y * canvas.width + x)
  if (pixels[at] === r && pixels[at + 1] === g && pixels[at + 2] === b && pixels[at + 3] === 255) {
    count++; first = first || [x / scale, y / scale]
  }
}
return [first, count]
"""
ORANGE = "#D55E00"


@pytest.fixture(scope="module")
def driver():
    need_browser()
    driver = chromium()
    known = psutil.Process(driver.service.process.pid)
    yield driver
    end(known, driver.quit)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing() is None:
        folder = tmp_path_factory.mktemp("look") / "page"
        assert cli.main(["look", "--out", str(folder), str(SCRIPT)]) == 0
        return folder / "index.html"
    return Path()


def text(driver: Any, selector: str) -> str:
    return driver.find_element("css selector", f".viewer {selector}").text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_strip_is_zoomed_and_searched(driver, page, scheme):
    from selenium.webdriver import ActionChains, Keys

    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    driver.get(page.as_uri())
    canvas = driver.find_element("css selector", ".viewer canvas")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    assert driver.find_elements("css selector", "noscript img") == [], (
        "the picture is for those without JavaScript"
    )

    (x, y), area = driver.execute_script(FIND, ORANGE)
    hint = text(driver, ".detail")
    size = canvas.size
    at = ActionChains(driver).move_to_element_with_offset(
        canvas, int(x + 2 - size["width"] / 2), int(y + 9 - size["height"] / 2)
    )
    at.perform()
    assert text(driver, ".detail") != hint
    told = text(driver, ".detail")
    assert told.startswith("collective · all_reduce · rank") and "group 3: 0, 1" in told and "s from" in told

    ActionChains(driver).double_click().perform()
    assert driver.execute_script(FIND, ORANGE)[1] > area, "its bar is wider now"
    assert text(driver, ".detail").startswith("collective")
    canvas.send_keys(Keys.HOME)
    assert driver.execute_script(FIND, ORANGE)[1] > 0

    box = driver.find_element("css selector", ".viewer .search")
    box.send_keys("block.forward")
    count, _, every = text(driver, ".found").split()[:3]
    assert 0 < int(count) < int(every)
    box.send_keys(Keys.ENTER)
    assert "Block.forward" in text(driver, ".detail") and text(driver, ".found") == f"match 1 of {count}"
    box.send_keys(Keys.SHIFT, Keys.ENTER)
    assert text(driver, ".found") == f"match {count} of {count}"
    box.clear()
    box.send_keys("groups.py:18")
    box.send_keys(Keys.ENTER)
    assert "Call to `torch._dynamo.graph_break()`" in text(driver, ".detail") or "all_reduce" in text(
        driver, ".detail"
    )
    box.clear()
    box.send_keys("no such name")
    assert text(driver, ".found").startswith("0 of")
    assert driver.execute_script(FIND, ORANGE)[1] == 0, "what does not match is faint"
    box.clear()
    box.send_keys(Keys.SPACE)

    steps = driver.find_element("css selector", ".viewer select")
    chosen = steps.get_property("selectedIndex")
    before = canvas.screenshot_as_base64
    steps.send_keys(Keys.ARROW_UP if chosen else Keys.ARROW_DOWN)
    assert steps.get_property("selectedIndex") != chosen and canvas.screenshot_as_base64 != before
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(ARTIFACTS / f"look_page_{scheme}.png"))
    assert driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
