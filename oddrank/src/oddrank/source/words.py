"""Torch's words for what stands beside a line, made short and plain."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oddrank.places import place
from oddrank.record import guard_words
from oddrank.record.tables import Collective, Mark
from oddrank.source.listing import Note

__all__ = ["again", "cut", "line_of", "plain", "short", "spot", "typed"]

MOST_WORDS = 118  # characters of torch's explanation that stand beside a line; its title takes their place
# a trace may name anything: what is longer is cut
MOST_TEXT = 600  # characters of a line of code, a note, a name
_USED = re.compile(r"# (\S{1,4096}:\d{1,9}) in ")  # the line that needs a guard, behind it
_SAYS = re.compile(r"^(?:Dynamo|torch\.compile) (does not know how to|cannot|detected|does not support) ?")
_HIDDEN = re.compile(
    r"Skip calling function `(?:[\w<>]+\.)*(\w+)` since it was wrapped with `torch.compiler.disable`"
    r"(?: \(reason: .*\))?"
)
_SHORTER = {
    "does not know how to": "cannot ",
    "cannot": "cannot ",
    "detected": "",
    "does not support": "no support for ",
}


def again(marks: Sequence[Mark]) -> Note:
    """All recompiles at one line, with the guards in words: those that differ in a value alone make one sentence. A
    compile is new where every code that was there failed, each with its own guard; the newest one's comes first."""
    alike: dict[tuple[str, str], list[str]] = {}
    for m in marks:
        guard = guard_words.bare(m.name)
        alike.setdefault((guard_words.form(guard), line_of(m.via)), []).append(guard)
    forms = {form for form, _ in alike}
    for reason in (reason for m in marks for reason in m.hints):
        guard, used = guard_words.bare(reason), _USED.search(reason)
        if guard_words.form(guard) not in forms:
            forms.add(guard_words.form(guard))
            alike[guard_words.form(guard), line_of(used[1] if used else "")] = [guard]
    said = [cut(guard_words.words(first, rest) + at) for (_, at), (first, *rest) in alike.items()]
    shown = "; ".join(said[:2]) + (f" and {len(said) - 2} more" if len(said) > 2 else "")
    words = shown if len(marks) == 1 else f"{len(marks)} times: {shown}"
    return Note("recompile", words, hints=tuple(dict.fromkeys([*said[2:], *(m.name for m in marks)])))


def line_of(via: str) -> str:
    return f" (line {via.rpartition(':')[2]})" if via else ""


def cut(text: str, most: int = MOST_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def typed(c: Collective) -> str:
    """What a collective that ran was given, as Dynamo prints a type: 'f32[4, 16]'."""
    dtype = re.sub(r"^(b?)(float|int|uint|complex)(?=\d)", lambda m: m[1] + m[2][0], c.dtype)
    return f"{dtype}[{c.shapes.replace('x', ', ')}]" if dtype and c.shapes else c.shapes or dtype


def spot(via: str) -> str:
    file, _, line = via.rpartition(":")
    return place(file, int(line))


def plain(title: str, why: str) -> str:
    """Torch's explanation of a break where it is short, for that has the names; its title otherwise."""
    said = re.sub(r" \((has_kwargs \w+|reason: None)\)", "", why).replace("<locals>.", "").rstrip(".")
    said = _HIDDEN.sub(r"`\1` is wrapped with `torch.compiler.disable`", said)
    said = _SAYS.sub(lambda m: _SHORTER[m[1]], said)
    return said if 0 < len(said) <= MOST_WORDS else title


def short(operator: str) -> str:
    """An operator without the packages that all have.

    >>> short("torch.ops.aten.add.Tensor"), short("torch._C._nn.gelu")
    ('aten.add.Tensor', 'gelu')
    """
    for head in ("torch.ops.", "torch._C._nn.", "torch.nn.functional.", "torch.", "_C."):
        operator = operator.removeprefix(head)
    return operator.removesuffix(".default")
