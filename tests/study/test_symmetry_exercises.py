"""The exercises of lesson 08: every plausible mistake gets the hint for it."""

from __future__ import annotations

import pytest
from wrong_symmetry import WRONG

from labkit import check


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exercise", "attempt", "hint"), WRONG, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_mistake_gets_its_hint(exercise, attempt, hint, ranks):
    answer = check(exercise, attempt, ranks)
    assert not answer
    assert hint in answer.hint, repr(answer)
