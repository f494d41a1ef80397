"""Contrast between colours, and which ink can be read on a colour; by WCAG 2.2, which asks 4.5 of small text."""

from __future__ import annotations

__all__ = ["contrast", "ink_on", "linear"]

BLACK, WHITE = "#000000", "#FFFFFF"


def linear(colour: str) -> tuple[float, float, float]:
    """Red, green and blue of '#RRGGBB' as shares of light, without sRGB's gamma.

    >>> linear("#FF0000")
    (1.0, 0.0, 0.0)
    """
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return r, g, b


def contrast(one: str, other: str) -> float:
    """How far two colours differ in lightness: from 1 for equal ones to 21 for black and white.

    >>> contrast("#000000", "#FFFFFF")
    21.0
    """
    lights = [
        sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (one, other)
    ]
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to read on `colour`.

    >>> ink_on("#0072B2"), ink_on("#F0E442")
    ('#FFFFFF', '#000000')
    """
    return max(BLACK, WHITE, key=lambda ink: contrast(ink, colour))
