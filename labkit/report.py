"""Reports of experiments: `oddrank.report`'s, with verdicts of timing."""

from __future__ import annotations

from typing import Any

import oddrank.report
from oddrank.report import AS_DATA, MIME, MODELLED, SIMULATED, provenance
from oddrank.run_label import HOST_ONLY

from labkit.per_rank import PerRank

__all__ = ["AS_DATA", "HOST_ONLY", "MIME", "MODELLED", "SIMULATED", "PerRank", "Report", "provenance"]


class Report(oddrank.report.Report):
    """What an experiment found; a verdict is a `labkit.timing.Verdict` or a text.

    >>> import pandas as pd
    >>> report = Report("demo", "A demonstration", "gloo · cpu", {"main": pd.DataFrame({"rank": [0, 1]})})
    >>> list(report.frame["rank"])
    [0, 1]
    """

    @staticmethod
    def _verdict(facts: dict[str, Any]) -> Any:
        from labkit.timing import Verdict

        return Verdict.from_dict(facts)
