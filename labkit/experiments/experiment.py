"""`Experiment`: what is known of an experiment before its module is imported, and how it is run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit.experiments.options import Option

if TYPE_CHECKING:
    from labkit.report import Report

__all__ = ["Experiment"]


@dataclass(frozen=True)
class Experiment:
    """The declaration of an experiment.

    Args:
        name: on the command line, and of the saved report.
        module: the module that runs it, below `course`, such as 'cliff.experiment'.
        title: of the report.
        question: what it answers.
        source: where the source documents ask for it.
        cpu_backend: the backend that `--backend auto` means on a CPU.
        options: what the command line may pass to the module's `run`.
        ranks: how many it needs.
        device: what `--device auto` means; 'cpu' where its programs make their tensors there.
        record: keywords of `run` that a recording adds.
        parts: the tests of a suite: name -> what it breaks.
        only: the test of a suite that this is; '' for the whole suite or no suite.
    """

    name: str
    module: str
    title: str
    question: str
    source: str
    cpu_backend: str
    options: tuple[Option, ...] = ()
    ranks: int = 2
    device: str = "auto"
    record: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    only: str = ""

    def load(self) -> Any:
        """Import the module of the experiment."""
        return importlib.import_module(f"course.{self.module}")

    def run(self, ranks: Any, **options: Any) -> Report:
        """Run the experiment.

        Args:
            ranks: the `Ranks` to run on.
            options: keywords of the module's `run`.

        Returns:
            The report.

        Raises:
            ValueError: an option or the ranks do not fit.
            RankError: a rank failed.
        """
        return self.load().run(ranks, **({"only": [self.only]} if self.only else {}), **options)

    def passed(self, report: Report) -> bool:
        """Whether a report shows what the experiment expects; True where the module expects nothing."""
        judge = getattr(self.load(), "passed", None)
        return judge is None or judge(report)
