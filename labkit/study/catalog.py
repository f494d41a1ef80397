"""All exercises of the lessons by name. Importing this imports those of all topics."""

from __future__ import annotations

import importlib

from labkit import registry
from labkit.study.exercises import Exercise

__all__ = ["EXERCISES"]

EXERCISES: dict[str, Exercise] = {}

for _name in registry.modules("exercises"):
    for _value in vars(importlib.import_module(_name)).values():
        if isinstance(_value, Exercise):
            EXERCISES[_value.name] = _value
