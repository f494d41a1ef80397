"""A meeting drawn: outcomes in words that stay beside their bars, whatever their length, and a finding that fits."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lessons.groups import figures as rendezvous
from labkit.report import Report

LONG = "Timed out waiting 2000ms for recv operation to complete, " * 4


def report(*ends: tuple[float, float, str, str]) -> Report:
    """Processes that came, ended, how, and what was said."""
    rows = [(i, i, len(ends), *end, None) for i, end in enumerate(ends)]
    columns = ["process", "rank", "world_size", "came", "ended", "outcome", "said", "value"]
    keys = pd.DataFrame(
        [(0.1, "(not listed)", b"1"), (0.2, "a", bytes(186))], columns=["seconds", "key", "value"]
    )
    return Report(
        "rendezvous", "t", "gloo · cpu", {"processes": pd.DataFrame(rows, columns=columns), "keys": keys}
    )


@pytest.mark.parametrize(("came", "ended"), [(0.0, 5.0), (0.0, 1.0), (2.2, 2.4), (4.7, 4.9)])
def test_words_of_any_length_stay_on_the_axis(came, ended):
    figure = rendezvous.figure(report((came, ended, "error", LONG), (0.0, 5.0, "still waiting", "")))
    ax = figure.axes[0]
    figure.draw_without_rendering()
    inside = ax.get_window_extent()
    said = next(text for text in ax.texts if text.get_text().startswith("Timed out"))
    box = said.get_window_extent()
    assert inside.x0 <= box.x0 and box.x1 <= figure.bbox.x1, (box, inside)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([(0.0, 1.0, "joined", ""), (0.5, 1.0, "joined", "")], "Rank 1 comes last, at 0.50 s"),
        ([(0.0, 1.0, "joined", ""), (0.01, 1.0, "joined", "")], "2 processes come together and are through"),
        ([(0.0, 2.0, "error", "x"), (0.0, 3.0, "error", "x")], "2 of 2 processes do not get in, after 2 to 3 s"),
        ([(0.0, 2.0, "joined", ""), (0.0, 3.0, "error", "x")], "1 of 2 processes do not get in, after 3 s, 1 come"),
    ],
)  # fmt: skip
def test_the_title_is_the_outcome(ends, words):
    figure = rendezvous.figure(report(*ends))
    assert figure.summary.startswith(words)
    assert "(not listed): keys that the store counts" in " ".join(t.get_text() for t in figure.texts)
