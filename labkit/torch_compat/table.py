"""What all parts together ask of torch: their features with the versions that have them, and every private name."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.torch_compat import (
    backends,
    cold,
    compiler,
    dispatch,
    dtensor,
    groups,
    pretend,
    recording,
    streams,
    together,
)
from labkit.torch_compat.versions import Feature, UnsupportedTorch, require

PARTS = (groups, recording, compiler, backends, dispatch, dtensor, streams, pretend, together, cold)


def features() -> list[tuple[Feature, tuple[str, ...]]]:
    """Every feature, each with those of the names it needs that the installed torch lacks.

    >>> feature, missing = features()[0]
    >>> feature.title, feature.versions, missing
    ('functional collectives', '2.11 to 2.15', ())
    """
    return [(feature, feature.missing()) for part in PARTS for feature in part.FEATURES]


def names() -> tuple[int, list[str]]:
    """How many of torch's private names this package asks for, and those that the installed torch lacks.

    >>> names()[0] > 20
    True
    """
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py")]
    asked = sorted(set(re.findall(r'require\(\s*"(torch[\w.]+)"\s*\)', "\n".join(sources))))
    missing = []
    for dotted in asked:
        try:
            require(dotted)
        except UnsupportedTorch:
            missing.append(dotted)
    return len(asked), missing
