"""The key to the colours of a table in HTML: inline, since a notebook that is not trusted has no style sheet."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["colour_key"]


def colour_key(colours: Mapping[str, str]) -> str:
    """Say what each colour stands for, in dark letters on the colour, which read in both themes.

    Args:
        colours: What a colour stands for -> the colour.

    >>> colour_key({"rank 0": "#9ECAE1"})
    '<p><span style="background-color:#9ECAE1;color:#111111">&nbsp;rank 0&nbsp;</span></p>'
    """
    chips = (
        f'<span style="background-color:{colour};color:#111111">&nbsp;{name}&nbsp;</span>'
        for name, colour in colours.items()
    )
    return f"<p>{' '.join(chips)}</p>"
