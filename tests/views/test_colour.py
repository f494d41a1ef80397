"""Colours that appear together are told apart with any colour vision, and text on them can be read.

Colour vision is simulated as Machado, Oliveira and Fernandes describe it in "A Physiologically-based Model for
Simulation of Color Vision Deficiency" (IEEE TVCG 15, 2009), with their matrices for full severity, in linear RGB.
Distances are CIELAB's (CIE 1976, D65), where about 2.3 is just noticeable side by side; text contrast is WCAG 2.2's.
"""

from __future__ import annotations

import ast
import itertools
import re

import numpy as np
import pytest
from oddrank.strip.kinds import linear

from labkit import files
from labkit.views import style

VISION = {
    "trichromat": np.eye(3),
    "protanope": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranope": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanope": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TOGETHER = {
    "kinds": {kind: shade for kind, (shade, _) in style.KINDS.items()},
    "stream kinds": {kind: shade for kind, (shade, _) in style.STREAM_KINDS.items()},
    "lines": {shade: shade for shade in style.COLOURS},
}
LEAST = 12.0  # five times what can just be noticed side by side, because these stand apart
READABLE = 4.5


def lab(light: np.ndarray) -> np.ndarray:
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    ratio = np.array(to_xyz) @ light / np.array([0.95047, 1.0, 1.08883])
    x, y, z = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str, vision: str) -> float:
    seen = [lab(np.clip(VISION[vision] @ np.array(linear(shade)), 0, 1)) for shade in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


@pytest.mark.parametrize("palette", TOGETHER)
def test_colours_that_appear_together_differ_for_everybody(palette):
    pairs = [*itertools.combinations(TOGETHER[palette].items(), 2)]
    found = {(a, b, v): distance(one, other, v) for (a, one), (b, other) in pairs for v in VISION}
    assert {pair: round(apart, 1) for pair, apart in found.items() if apart < LEAST} == {}


def test_text_on_a_bar_and_on_white_can_be_read_by_the_standards_contrast():
    pairs = [(style.ink_on(shade), shade) for shade, _ in (style.KINDS | style.STREAM_KINDS).values()]
    for ink, ground in [*pairs, (style.INK, "#FFFFFF"), (style.QUIET, "#FFFFFF")]:
        assert style.contrast(ink, ground) >= READABLE, (ink, ground)
    assert style.contrast("#FFFFFF", "#000000") == pytest.approx(21)
    assert style.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)  # the grey that just fails


def test_kinds_of_one_lane_differ_in_more_than_colour():
    for kinds in (style.KINDS.keys() - {"transfer"}, style.STREAM_KINDS):
        inside = {kind: (style.SHAPES[kind], style.HATCHES.get(kind)) for kind in kinds}
        assert len(set(inside.values())) == len(inside)


def test_keys_have_the_shape_of_their_kind():
    sheet = style.Sheet()
    kinds = ("collective", "compute", "entry", "lookup", "python")
    sheet.legend([(kind, style.swatch(kind)) for kind in kinds])
    axes = sheet.finish("simulated").axes
    keys = [patch.get_height() for ax in axes if ax.get_label() == "legend" for patch in ax.patches]
    assert keys == pytest.approx([0.14 * share for share in (1.0, 0.8, 0.6, 0.4, 0.2)])


def test_html_takes_the_ink_of_its_theme_or_has_a_ground_of_its_own():
    """JupyterLab and the book have a light and a dark theme: an ink alone is invisible in one of them."""
    found = []
    for path in sorted((files.ours("labkit")).rglob("*.py")):
        if path.name == "page.py":
            continue  # a page of its own, with colours for both themes
        for node in ast.walk(ast.parse(path.read_text())):
            whole = isinstance(node, ast.JoinedStr)
            parts = node.values if whole else [node]
            text = "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
            if re.search(r"(?<![-\w])color:\s*[#a-z]", text) and "background" not in text:
                found.append(f"{path.name}:{node.lineno}: {text[:60]}")
    assert found == []
