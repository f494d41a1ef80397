"""What `labkit look` prints on the terminal: the same causes and verdict as on the page."""

from __future__ import annotations

from labkit.look.causes import causes, folded, shown
from labkit.look.found import Look

__all__ = ["Told", "text"]


class Told(Look):
    """A look that describes itself, for a notebook."""

    def text(self) -> str:
        """Describe in plain text, as `text` does."""
        return text(self)


def text(looked: Look) -> str:
    """Describe in plain text: the counts, the three causes to begin with, and whether ranks differ."""
    lines = [f"{looked.name}: {looked.steps} {looked.unit}s recorded  [{looked.record.label}]", ""]
    lines += [looked.counts.to_string(index=False, float_format=lambda v: f"{v:g}"), ""]
    lines += [*shown(causes(looked), 3), *map(str, folded(looked))]
    lines += [f"note: {note}" for note in looked.notes]
    return "\n".join([*lines, looked.verdict()])
