"""What `oddrank look` prints on the terminal: the same causes and verdict as on the page."""

from __future__ import annotations

from oddrank.look.causes import causes, shown
from oddrank.look.library_breaks import folded
from oddrank.look.look import Look

__all__ = ["Told", "text"]


class Told(Look):
    """A look that describes itself, for a notebook."""

    def text(self) -> str:
        """Describe in plain text, as `text` does."""
        return text(self, "compared() lists it")


def text(looked: Look, lists: str = "the page lists it") -> str:
    """Describe in plain text: the counts, the causes, and whether ranks differ.

    Args:
        looked: What ranks recorded.
        lists: Where a reader finds what was compared.
    """
    lines = [f"{looked.name}: {looked.steps} {looked.unit}s recorded  [{looked.record.label}]", ""]
    lines += [looked.counts.round(2).to_string(index=False, float_format=lambda v: f"{v:g}")]
    lines += [*filter(None, [looked.messages()]), ""]
    first, verdict = shown(causes(looked)), looked.verdict()
    lines += [*first, *map(str, folded(looked)), *(f"note: {note}" for note in looked.notes)]
    if any(verdict in line for line in first):  # that ranks differ is a cause
        return "\n".join(lines)
    equal = len(looked.ranks) > 1 and not looked.missing and not looked.apart()
    lines += [f"no finding: {one}" for one in looked.allowed()] if equal else []
    return "\n".join([*lines, f"{verdict} ({lists})" if equal and looked.compared() else verdict])
