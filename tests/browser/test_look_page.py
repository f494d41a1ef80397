"""The page of `oddrank look` in Chromium: the strip is zoomed, moved and searched, and nothing is loaded."""

from __future__ import annotations

import re
from typing import Any

import pytest
from browsers import ARTIFACTS, ROOT
from oddrank.page import document, table

from oddrank import command as cli

SCRIPT = ROOT / "oddrank" / "tests" / "look" / "scripts" / "groups.py"
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
def page(browser, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the page of a run on two ranks."""
    folder = tmp_path_factory.mktemp("look") / "page"
    assert cli.main(["look", "--out", str(folder), str(SCRIPT)]) == 0
    return (folder / "index.html").as_uri()


# what of a page begins or ends beyond its edge
BEYOND = """
document.querySelectorAll('details').forEach(one => { one.open = true })
return [document.documentElement.scrollWidth, document.documentElement.clientWidth]
"""
LIBRARY = "transformers/models/llama/modeling_llama.py:456 (LlamaForCausalLM.forward)"


@pytest.mark.parametrize("width", [900, 1100, 1400])
def test_long_places_make_no_page_wider_than_its_window(browser, page, tmp_path, width):
    heads = ["rank", "name", "place", "seconds", "Dynamo: tracing and guards, s", "backend, s"]
    row = ["0", f"LlamaForCausalLM.forward, resumed at {LIBRARY}", LIBRARY, "1.413", "1.412", "0.00049"]
    longest = [f"{LIBRARY.replace(' ', '/')}/{'library/' * 30}", *row[1:]]
    parts = [
        table(heads, [row], "", {0, 3, 4, 5}),
        table(heads, [longest]),
        f"<ol><li>{longest[0]}</li></ol>",
    ]
    (tmp_path / "index.html").write_text(document("long places", parts))
    browser.set_window_size(width, 1000)
    for address in (page, (tmp_path / "index.html").as_uri()):
        browser.get(address)
        reach, window = browser.execute_script(BEYOND)
        assert reach <= window <= width


def window(canvas: Any) -> list[float]:
    """The times in ms between which the canvas shows what ran."""
    return [float(n) for n in re.findall(r"[\d.e+-]*\d", canvas.get_attribute("aria-label"))]


def text(driver: Any, selector: str) -> str:
    return driver.find_element("css selector", f".viewer {selector}").text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_strip_is_zoomed_and_searched(browser, page, scheme):
    from selenium.webdriver import ActionChains, Keys

    driver = browser
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    driver.get(page)
    canvas = driver.find_element("css selector", ".viewer canvas")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    assert driver.find_elements("css selector", "noscript img") == [], (
        "the picture is for those without JavaScript"
    )

    (x, y), _ = driver.execute_script(FIND, ORANGE)
    hint, whole = text(driver, ".detail"), window(canvas)
    middle = canvas.size["width"] / 2, canvas.size["height"] / 2
    there = int(x + 2 - middle[0]), int(y + 9 - middle[1])
    ActionChains(driver).move_to_element_with_offset(canvas, *there).perform()
    told = text(driver, ".detail")
    assert told != hint and told.startswith("collective · all_reduce · rank"), told
    assert "group 3: 0, 1" in told and re.search(r"\d (ms|µs) from \d", told), told

    ActionChains(driver).double_click().perform()
    near = window(canvas)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 3, rel=1e-3)
    ActionChains(driver).move_to_element(canvas).click_and_hold().move_by_offset(-60, 0).release().perform()
    moved = window(canvas)
    assert moved[0] > near[0] and moved[1] - moved[0] == pytest.approx(near[1] - near[0], rel=1e-3)
    canvas.send_keys("-")
    assert window(canvas)[1] - window(canvas)[0] > near[1] - near[0]
    canvas.send_keys(Keys.HOME)
    assert window(canvas) == whole

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
    assert "groups.py:18 (Block.forward)" in text(driver, ".detail")
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
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
