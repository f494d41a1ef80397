"""A failed guard in words: what changes from one compile to the next, and from which value to which."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["again", "bare", "form", "from_break", "source", "words"]

_LOCAL = re.compile(r"\b[LG]\[['\"](\w+)['\"]\]")
_ITEM = re.compile(r"\.__dict__\[['\"](\w+)['\"]\]")
_INSIDE = re.compile(r"\._(?:modules|parameters|buffers)\[['\"](\w+)['\"]\]")
_TENSOR = re.compile(
    r"^tensor ['\"]?(?P<name>.+?)['\"]? (?P<what>[\w ]+?) mismatch"
    r"(?: at index (?P<index>\d+))?\. expected (?P<was>.*?), actual (?P<now>.*?)\.?$"
)
_GRAD = re.compile(r"^tensor ['\"]?(?P<name>.+?)['\"]? requires_grad mismatch")
_NO_TENSOR = re.compile(
    r"^expected type of '(?P<name>.+?)' to be a tensor type, ' but found <class '(?P<now>.+?)'>"
)
_SIZED = re.compile(r"^(?P<name>.+?)\.(?P<what>size|stride)\(\)\[(?P<index>\d+)\] == (?P<was>-?\d+)$")
_EQUAL = re.compile(r"^(?P<name>[\w.\[\]'\"]+) == (?P<was>.+)$")
_LENGTH = re.compile(r"^(?:\w*len\w*)\((?P<name>[\w.\[\]'\"]+)\) == (?P<was>\d+)$")
_OBJECT = re.compile(r"^___check_(?P<kind>obj_id|type_id)\((?P<name>.+?), \d+(?:\)|, |$)")
_STATE = re.compile(r"^GLOBAL_STATE changed: (?P<what>.+?)\s*$")
_STACK = re.compile(r"^___stack\d+(?P<part>.*)$")
_GONE = re.compile(r"^Cache line invalidated because (?P<name>.+?) got deallocated")
_LONG = re.compile(r"-?\d+\.\d{5,}(?:e-?\d+)?")
# torch/csrc/dynamo/guards.cpp, GlobalStateGuard
_STATES = {
    "grad_mode": "gradients are on in one call and off in another (`grad_mode`)",
    "autocast": "autocast is on in one call and off in another, or another one",
    "num_threads": "the number of threads changes (`torch.set_num_threads`)",
    "default_dtype": "the default dtype changes (`torch.set_default_dtype`)",
}


def again(reasons: Sequence[str]) -> str:
    """Say in words why a frame was compiled again, one guard of each form; '' for its first compile.

    There is a failed guard of each code that was there already, the newest first. Guards on one value say what it was
    in turn; those on a tensor have the size of this call, too, and the newest one is enough.

    Args:
        reasons: As in `Compile.reasons`.

    >>> again(["rate == 0.2", "rate == 0.1"])
    '`rate` changes (0.1 -> 0.2)'
    """
    alike: dict[str, list[str]] = {}
    for reason in reasons:
        guard = bare(reason)
        alike.setdefault(form(guard), []).append(guard)
    each = (mine[:1] if ", actual " in mine[0] else mine[::-1] for mine in alike.values())
    return "; ".join(dict.fromkeys(words(oldest, later) for oldest, *later in each))


def bare(reason: str) -> str:
    """The guard alone, without the line and the stack that torch adds.

    >>> bare("x == 3      # y = x + 1  # train.py:7 in step")
    'x == 3'
    """
    return reason.partition("User stack trace:")[0].partition("  # ")[0].strip()


def form(guard: str) -> str:
    """A guard without the values that it compares with."""
    return re.sub(r" == .*$|expected .*$|, \d+.*$", "", guard)


def source(text: str) -> str:
    """Return a guarded value as a program writes it.

    >>> source("L['self']._modules['layer'].__dict__['rate']"), source("G['CONFIG']['size']")
    ('self.layer.rate', "CONFIG['size']")
    """
    said = _LOCAL.sub(r"\1", text.strip())
    return _INSIDE.sub(r".\1", _ITEM.sub(r".\1", said))


def from_break(guard: str) -> bool:
    """Whether a guard compares a number that code before a graph break left for the code after it.

    >>> from_break("___stack0[1] == 40"), from_break("tensor '___stack0' size mismatch at index 0")
    (True, False)
    """
    at = _EQUAL.match(guard.strip())
    return bool(at and _STACK.match(at["name"]))


def _quoted(name: str) -> str:
    """A guarded value in a sentence; Dynamo's name for what a break leaves means nothing to a reader."""
    if at := _STACK.match(source(name)):
        return f"`{at['part']}` of the value from the break" if at["part"] else "the value from the break"
    return f"`{source(name)}`"


def words(reason: str, others: Sequence[str] = (), last: str = "") -> str:
    """Say in words which guard failed.

    Args:
        reason: The failed guard, as Dynamo prints it.
        others: Guards of the same function that failed later, oldest first: they hold the values that came then.
        last: The guards of the newest code, for the newest value.

    Returns:
        What changes; the guard itself where it is of no known form.

    >>> words("tensor 'x' size mismatch at index 0. expected 16, actual 24")
    'dimension 0 of `x` changes (16 -> 24)'
    >>> words("self.rate == 0.1", ["self.rate == 0.2", "self.rate == 0.3"])
    '`self.rate` changes each time (0.1 -> 0.2 -> 0.3)'
    >>> words("___check_obj_id(self.processor, 140), type=<class 'P'>")
    '`self.processor` is another object'
    >>> words("some_guard(x)")
    'the guard `some_guard(x)` fails'
    """
    reason = reason.strip()
    if at := _GRAD.match(reason):
        return f"{_quoted(at['name'])} needs a gradient in one call and not in another"
    if at := _TENSOR.match(reason):
        said = {"size": "dimension", "stride": "the stride of dimension"}.get(at["what"])
        of = {"rank": "number of dimensions"}.get(at["what"], at["what"])
        said = f"{said} {at['index']}" if said and at["index"] else f"the {of}"
        return f"{said} of {_quoted(at['name'])} changes{_values(_run(at['was'], at['now'], reason, others))}"
    if at := _NO_TENSOR.match(reason):
        now = at["now"].replace("NoneType", "None")
        return f"{_quoted(at['name'])} is a tensor in one call and {now} in another"
    if at := _STATE.match(reason):
        found = [said for name, said in _STATES.items() if name in at["what"]]
        return "; ".join(found) or f"a setting of torch changes: {at['what']}"
    if at := _GONE.match(reason):
        return f"{_quoted(at['name'])} is another object, and the one before is gone"
    if at := _OBJECT.match(reason):
        said = "is another object" if at["kind"] == "obj_id" else "has another type"
        return f"{_quoted(at['name'])} {said}"
    for pattern, said in ((_SIZED, ""), (_LENGTH, "the length of "), (_EQUAL, "")):
        if at := pattern.match(reason):
            left = reason.rpartition(" == ")[0]
            was = [at["was"], *(value for text in others if (value := _value(text, left)))]
            newest = next((value for line in last.splitlines() if (value := _value(line, left))), "")
            values = [*was, newest] if newest and newest != was[-1] else was
            name = f"{said}{_quoted(at['name'])}"
            if pattern is _SIZED:
                part = "dimension" if at["what"] == "size" else "the stride of dimension"
                name = f"{part} {at['index']} of {name}"
            return f"{name} changes{' each time' if len(set(values)) > 2 else ''}{_values(values)}"
    return f"the guard `{reason}` fails" if reason else "torch reported no guard"


def _value(text: str, left: str) -> str:
    """What a guard says that `left` equals; '' where it says nothing of it. Guards' tests stand after a colon."""
    guard = text.rpartition(": ")[2] if ": " in text else text
    name, _, value = guard.strip().rpartition(" == ")
    return value if value and source(name) == source(left) else ""


def _run(was: str, now: str, reason: str, others: Sequence[str]) -> list[str]:
    """The values of a tensor's property, one after the other."""
    found = [was, now]
    head = reason.partition(". expected")[0]
    for text in others:
        if text.startswith(head) and (at := _TENSOR.match(text)) and at["now"] not in found:
            found.append(at["now"])
    return found


def _values(values: Sequence[str]) -> str:
    """Some of the values, with arrows between them; the one before where only that is known; '' for long ones."""
    shown = list(dict.fromkeys(_LONG.sub(lambda m: f"{float(m[0]):.4g}", value.strip()) for value in values))
    if any(len(value) > 40 for value in shown[:4]):
        return ""
    if len(shown) < 2:
        return f" (it was {shown[0]})" if shown else ""
    more = " -> ..." if len(shown) > 4 else ""
    return f" ({' -> '.join(shown[:4])}{more})"
