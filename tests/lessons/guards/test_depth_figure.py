"""The figure of compile time over depth, from tables that are given."""

from __future__ import annotations

import pandas as pd

from course.guards import depth_figures as depth
from labkit.report import Report


def grown(per_block_s: float) -> Report:
    times = [(d, form, s) for form in ("whole", "block by block") for d, s in ((1, 0.2), (4, 0.3))]
    summary = pd.DataFrame(times, columns=["depth", "form", "median_s"])
    summary = summary.assign(p10_s=summary["median_s"] - 0.01, p90_s=summary["median_s"] + 0.01, n=8)
    fits = pd.DataFrame({"form": ["whole", "block by block"], "per_block_s": [0.039, per_block_s]})
    fits = fits.assign(
        first_s=0.2, per_block_low=-0.0004, per_block_high=0.04, exponent=0.5, low=0.1, high=1.1
    )
    slopes = pd.DataFrame({"a": ["block by block"], "b": ["whole"], "outcome": ["less"]})
    tables = {"summary": summary, "fits": fits, "slopes": slopes}
    return Report("depth", "Depth", "host only", tables, [], {"compiler": "eager"})


def test_a_slope_that_is_about_nothing_has_no_sign():
    drawn = depth.figure(grown(-0.0002)).summary
    assert "A further block costs the whole model 39 ms; block by block 0 (less)" in drawn
    assert "0 ms a block (0 to 40)" in drawn and "-0" not in drawn
    assert "block by block -1 (less)" in depth.figure(grown(-0.0012)).summary
