"""The meters of the house: what each may be at most, and that each finds what it is there to find."""

from __future__ import annotations

import pytest

from tools import house, reach
from tools.reach import Code

# these numbers only go down: whoever brings one down writes it here
AT_MOST = {
    "lines that only a test reaches": 3,
    "names of ours in cells": 67,
    "of these in one lesson only": 37,
    "of these from torch_compat": 0,
    "circles of imports": 0,
}
# 390 functions on a quiet machine, some more beside other work: what watches the waiting ranks
PATH_FILES, PATH_FUNCTIONS = 42, 410


def test_the_meters_stand_where_they_stood_or_lower():
    assert {name: n for name, n in house.meters().items() if n > AT_MOST[name]} == {}


@pytest.mark.slow
def test_the_path_from_lesson_04s_cell_to_its_figure_gets_no_longer():
    found = house.path()
    files = {file for file, _ in found}
    assert len(files) <= PATH_FILES and len(found) <= PATH_FUNCTIONS, sorted(files)
    # both ends and the middle were seen: the kernel's side, a rank's, and the drawing
    assert {"labkit/ranks/group.py", "labkit/records/record.py", "labkit/views/strip.py"} <= files


@pytest.fixture
def small(tmp_path):
    """A package with a circle, a lazy name, a name in a text, and a function that nobody reaches."""
    texts = {
        "__init__": '_WHERE = {"start": "labkit.a"}\n',
        "a": "from labkit import b\n\ndef start():\n    return b.used() + 'labkit.c:named'\n",
        "b": "from .c import helper\n\ndef used():\n    return helper\n\ndef unused():\n    return 1\n",
        "c": "def helper():\n    from labkit import b\n    return b\n\ndef named():\n    return 2\n",
    }
    (tmp_path / "labkit").mkdir()
    for name, text in texts.items():
        (tmp_path / "labkit" / f"{name}.py").write_text(text)
    return Code(tmp_path)


def test_names_are_followed_through_imports_attributes_and_texts(small):
    found = small.reached([("labkit", "start")])
    assert {
        ("labkit.a", "start"),
        ("labkit.b", "used"),
        ("labkit.c", "helper"),
        ("labkit.c", "named"),
    } <= found
    assert ("labkit.b", "unused") not in found
    assert small.size(found)["labkit.b"] == 3  # an import and a function of two lines


def test_a_circle_is_found(small):
    assert small.circles() == [["labkit.b", "labkit.c"]]


def test_what_a_cell_names_counts_once_and_by_its_longest_form(monkeypatch):
    text = "import labkit\nfrom labkit import views\nviews.strip(labkit.record())\nviews.strip\nviews"
    monkeypatch.setattr(reach, "cells", lambda: {"01_one": text, "02_two": "import labkit\nlabkit.record()"})
    assert reach.dotted_names() == {
        "labkit.views.strip": {"01_one"},
        "labkit.record": {"01_one", "02_two"},
    }
