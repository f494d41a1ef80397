"""All checks and exercises of the lessons by name. Importing this imports the claims and exercises of all topics."""

from __future__ import annotations

import importlib

from labkit import registry
from labkit.study.checks import CHECKS
from labkit.study.exercises import Exercise

__all__ = ["CHECKS", "EXERCISES"]

EXERCISES: dict[str, Exercise] = {}

for _name in registry.modules("claims"):
    importlib.import_module(_name)  # its judges add themselves to CHECKS
for _name in registry.modules("exercises"):
    for _value in vars(importlib.import_module(_name)).values():
        if isinstance(_value, Exercise):
            EXERCISES[_value.name] = _value
