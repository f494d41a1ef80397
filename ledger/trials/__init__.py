"""The trials of the facts, a module for each topic: `TRIALS` has all of them by name."""

import importlib
import pkgutil

from ledger.trial import TRIALS

__all__ = ["TRIALS"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
