"""oddrank finds the odd rank out: what the ranks of a compiled distributed job compiled and ran, and where they differ.

>>> import oddrank
>>> oddrank.__version__.count(".")
2
"""

from __future__ import annotations

__version__ = "0.1.0"
