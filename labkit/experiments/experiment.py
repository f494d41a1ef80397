"""An experiment as it is known before anything of it is imported, and how it is run."""

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
    """An experiment: what it asks, what it takes, and the module that runs it.

    where: that module below `labkit.lessons`, such as 'cliff.experiment'. link: the backend that `auto` means on a CPU.
    ranks: how many it needs. device: what `auto` means where its programs are written for one device. options: what the
    command line may tell `run`. record: what a recording takes beyond the defaults. parts: the tests of a suite by
    name; `only` is the one that this experiment is.
    """

    name: str
    where: str
    title: str
    question: str
    source: str
    link: str
    options: tuple[Option, ...] = ()
    ranks: int = 2
    device: str = "auto"
    record: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    only: str = ""

    def module(self) -> Any:
        """The module of the experiment, imported on first use."""
        return importlib.import_module(f"labkit.lessons.{self.where}")

    def run(self, ranks: Any, **options: Any) -> Report:
        """Run it on `ranks`. Raises what the module's `run` raises."""
        return self.module().run(ranks, **({"only": [self.only]} if self.only else {}), **options)

    def passed(self, report: Report) -> bool:
        """Whether a report shows what the experiment expects; True where the module expects nothing."""
        judge = getattr(self.module(), "passed", None)
        return judge is None or judge(report)
