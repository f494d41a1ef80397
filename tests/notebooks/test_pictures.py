"""The drawn pictures at the head of the lessons: a white card in any theme, whose text can be read on its box."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from labkit import files
from labkit.views import style

PICTURES = sorted((files.ours("notebooks") / "pictures").glob("*.svg"))
READABLE = 4.5
INHERITED = ("fill", "font-size", "text-anchor", "font-weight")


def parts(element: ElementTree.Element, above: dict[str, str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Every element in the order in which it is painted: its name, its text, and its own and inherited attributes."""
    own = {name: value for name, value in above.items() if name in INHERITED} | element.attrib
    yield element.tag.rpartition("}")[2], (element.text or "").strip(), own
    for child in element:
        yield from parts(child, own)


def shade(own: dict[str, str]) -> str:
    return {"white": style.WHITE}.get(own.get("fill", style.BLACK), own.get("fill", style.BLACK))


def hard_to_read(path: Path) -> list[str]:
    """Texts whose colour is too near to that of the box painted last under their middle."""
    boxes: list[tuple[float, float, float, float, str]] = []
    found = []
    for name, text, own in parts(ElementTree.parse(path).getroot(), {}):
        x, y, size = (
            float(own.get(key, default)) for key, default in (("x", 0), ("y", 0), ("font-size", 16))
        )
        if name == "rect" and shade(own) != "none" and not shade(own).startswith("url"):
            boxes.append((x, y, x + float(own["width"]), y + float(own["height"]), shade(own)))
        elif name == "text" and text and "transform" not in own:
            wide = style.text_width(text, size * 0.75) * 96  # a CSS pixel is 0.75 points
            x += {"start": 0.5, "middle": 0.0, "end": -0.5}[own.get("text-anchor", "start")] * wide
            y -= size * 0.35
            under = [ground for a, b, c, d, ground in boxes if a <= x <= c and b <= y <= d]
            if style.contrast(shade(own), under[-1]) < READABLE:
                found.append(f"{text!r}: {shade(own)} on {under[-1]}")
    return found


def cut_off(path: Path) -> list[str]:
    """Texts that do not fit on the card in DejaVu Sans, the widest of the fonts that the pictures name."""
    root = ElementTree.parse(path).getroot()
    found = []
    for name, text, own in parts(root, {}):
        if name == "text" and text and "transform" not in own:
            size, weight = float(own.get("font-size", 16)), own.get("font-weight", "normal")
            wide = (
                style.text_width(text, size * 7.5, weight) * 9.6
            )  # ten times as large: not rounded to pixels
            before = {"start": 0.0, "middle": 0.5, "end": 1.0}[own.get("text-anchor", "start")] * wide
            left = float(own.get("x", 0)) - before
            if left < 0 or left + wide > float(root.attrib["viewBox"].split()[2]):
                found.append(text)
    return found


def test_every_lesson_but_the_appendix_has_one():
    every, drawn = {*map(files.number, files.lessons())}, {*map(files.number, PICTURES)}
    assert drawn <= every and {number for number in every - drawn if number.isdecimal()} == {"19"}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_it_is_a_white_card_with_a_name_and_readable_text(path):
    root = ElementTree.parse(path).getroot()
    drawn = list(parts(root, {}))
    assert next(text for name, text, _ in drawn if name == "title")
    ground = next(own for name, _, own in drawn if name == "rect")
    assert shade(ground) in (style.WHITE, "#ffffff")
    assert [ground["width"], ground["height"]] in (["100%", "100%"], root.attrib["viewBox"].split()[2:])
    assert hard_to_read(path) == []
    assert cut_off(path) == []


def test_white_on_pink_is_found(tmp_path):
    drawing = (
        '<svg xmlns="http://www.w3.org/2000/svg"><rect width="99" height="40" fill="#FFFFFF"/>'
        '<rect width="60" height="40" fill="#CC79A7"/><text x="9" y="20" fill="#FFFFFF">key</text></svg>'
    )
    (tmp_path / "a.svg").write_text(drawing)
    assert hard_to_read(tmp_path / "a.svg") == ["'key': #FFFFFF on #CC79A7"]


def test_a_bold_heading_that_runs_over_the_edge_is_found(tmp_path):
    heading = '<text x="690" y="28" font-size="15" font-weight="{}">With the edges that are needed</text>'
    card = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 945 40">{}</svg>'
    for weight, found in (("normal", []), ("bold", ["With the edges that are needed"])):
        (tmp_path / "a.svg").write_text(card.format(heading.format(weight)))
        assert cut_off(tmp_path / "a.svg") == found
