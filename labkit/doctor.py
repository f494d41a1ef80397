"""What this machine has and lacks: hardware, ranks, and torch."""

from __future__ import annotations

from pathlib import Path

from oddrank.torch_names import wanted
from oddrank.torch_names.wanted import PrivateName

from labkit import hardware, torch_compat

__all__ = ["examine"]


def examine() -> list[tuple[str, str]]:
    """Describe this machine in pairs of a keyword and its text.

    Raises:
        UnsupportedTorch: the installed torch is outside of the supported range.

    >>> dict(examine())["Ranks(1)"].split(":")[0] in ("gloo on cpu", "nccl on cuda")
    True
    """
    facts = hardware.describe()
    rows = [
        (key, ", ".join(value) if isinstance(value, list) else str(value)) for key, value in facts.items()
    ]
    for count in (1, 2, 4):
        choice = hardware.choose(count)
        rows.append((f"Ranks({count})", f"{choice.backend} on {choice.device}: {choice.why}"))
    torch_compat.check_version(facts["torch"])
    rows.append(("labkit on", _tested(facts["torch"])))
    asked = [name for name in _names() if name.in_range or not name.optional]
    lacking = [name for name in asked if not name.there]
    known, lacks = ({str(name): None for name in names} for names in (asked, lacking))
    rest = f"; this torch lacks {', '.join(lacks)}: what needs one of them says so" if lacks else ""
    found = f"{len(known) - len(lacks)} of {len(known)}"
    rows.append(("private", f"{found} private names of torch that labkit uses are there{rest}"))
    for name in dict.fromkeys(lacking):
        versions = torch_compat.span(name.since, name.until)
        rows.append(("lacking", f"{name.function} (torch {versions}): no {name}; lost: {name.does}"))
    return rows


def _names() -> list[PrivateName]:
    """The private names of torch that labkit and oddrank ask for."""
    return wanted.private_names(Path(torch_compat.__file__).parent, wanted.HERE)


def _tested(version: str) -> str:
    plain = version.partition("+")[0]
    low, high = torch_compat.SUPPORTED
    if plain in torch_compat.TESTED:
        return f"torch {plain}: tested in full"
    others = " and ".join(torch_compat.TESTED)
    if plain in torch_compat.RUN:
        return f"torch {plain}: {torch_compat.RUN[plain]}; tested in full: {others}"
    return f"torch {plain}: within the supported {low} to {high}, but not tested; tested in full: {others}"
