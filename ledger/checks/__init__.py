"""The checks of the facts, a module for each topic: `CHECKS` has all of them by name."""

import importlib
import pkgutil

from ledger.check import CHECKS

__all__ = ["CHECKS"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
