"""The drawn pictures at the head of the lessons: a white card in any theme, whose text can be read on its box."""

from __future__ import annotations

from collections.abc import Iterator
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


def hard_to_read(root: ElementTree.Element) -> list[str]:
    """Texts whose colour is too near to that of the box painted last under their middle."""
    boxes: list[tuple[float, float, float, float, str]] = []
    found = []
    for name, text, own in parts(root, {}):
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


def cut_off(root: ElementTree.Element) -> list[str]:
    """Texts that do not fit on the card in DejaVu Sans, the widest of the fonts that the pictures name."""
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
    assert hard_to_read(root) == cut_off(root) == []
    # what is wrong would be seen: white text on a light box, and a text that begins at the edge
    texts = [one for one in root.iter() if one.tag.endswith("text") and "transform" not in one.attrib]
    for text in texts:
        text.set("fill", "#FEFEFE")
    assert hard_to_read(root)
    texts[0].set("text-anchor", "start")
    texts[0].set("x", root.attrib["viewBox"].split()[2])
    assert len(cut_off(root)) == 1
