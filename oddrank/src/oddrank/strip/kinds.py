"""The kinds of what a rank does, each with its colour, its words, and its place in a lane."""

from __future__ import annotations

BLACK, WHITE = "#000000", "#FFFFFF"

# What a rank's main thread does. Okabe-Ito, told apart with any colour vision, the same in every figure.
KINDS: dict[str, tuple[str, str]] = {
    "compute": ("#0072B2", "compute"),
    "dispatch": ("#009E73", "tensor subclass, in Python"),
    "collective": ("#D55E00", "collective"),
    "lookup": ("#F0E442", "cache lookup & guards"),
    "entry": ("#CC79A7", "region entry & exit"),
    "python": ("#BBBBBB", "Python in between"),
    "compile": ("#4B3F72", "compiling"),
    "transfer": ("#E69F00", "transfer on another thread"),
    "wait": ("#56B4E9", "wait"),
}

# Where in its lane a kind's bar begins and ends, as shares from the top: work is tall, what stands between is low. It
# tells kinds apart without their colours, however short the bar; `compile` is hatched as well.
SHAPES: dict[str, tuple[float, float]] = {
    "collective": (0.0, 1.0),
    "compute": (0.2, 1.0),
    "dispatch": (0.5, 1.0),
    "entry": (0.4, 1.0),
    "lookup": (0.6, 1.0),
    "python": (0.8, 1.0),
    "compile": (0.0, 1.0),
    "transfer": (0.0, 1.0),  # stands in a thin lane of its own
    "wait": (0.4, 0.6),
    "copy": (0.25, 1.0),
    "launch": (0.6, 1.0),
    "synchronize": (0.4, 0.75),
}
HATCHES = {"compile": "xxxx"}


def linear(colour: str) -> tuple[float, float, float]:
    """Red, green and blue of '#RRGGBB' as shares of light, without sRGB's gamma.

    >>> linear("#FF0000")
    (1.0, 0.0, 0.0)
    """
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return r, g, b


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours by WCAG 2.2: from 1 for equal ones to 21 for black and white.

    Small text needs 4.5.

    >>> contrast("#000000", "#FFFFFF")
    21.0
    """
    lights = [
        sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (one, other)
    ]
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour.

    >>> ink_on("#0072B2"), ink_on("#F0E442")
    ('#FFFFFF', '#000000')
    """
    return max(BLACK, WHITE, key=lambda ink: contrast(ink, colour))
