"""Lesson 03's exercises name their snippets without importing torch."""

from __future__ import annotations

from labkit.lessons.reading.exercises import reading


def test_the_names_of_the_snippets_agree():
    from labkit.lessons.reading.exercises.unfamiliar import SNIPPETS

    assert tuple(SNIPPETS) == reading.COUNTED
