"""Bytecode as text: what `dis` prints, and depyf's Python form of it where depyf is installed."""

from __future__ import annotations

import dis
import io
import re
from types import CodeType

from oddrank.places import rewrite

__all__ = ["clean", "decompile", "disassemble"]

MOST_BYTES = 40_000  # of bytecode that depyf is given: it takes seconds for more
_UNIQUE = re.compile(r"(__compiled_fn_\d+)(?:_[0-9a-f]{6,}(?:_[0-9a-f]{4,})*)")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def clean(text: str) -> str:
    """Remove from a text what differs from run to run: addresses, folders, the random part of `__compiled_fn_k`.

    >>> clean("__compiled_fn_2_c55e5637_6128_4017_9e76_6955dfe58331(x, w)")
    '__compiled_fn_2(x, w)'
    """
    return rewrite(_ADDRESS.sub("", _UNIQUE.sub(r"\1", text)))


def disassemble(code: CodeType) -> str:
    """What `dis` prints for one code object.

    >>> disassemble((lambda x: x).__code__).split()[-1]
    'RETURN_VALUE'
    """
    out = io.StringIO()
    dis.dis(code, file=out, depth=0)
    return clean(out.getvalue()).strip("\n")


def decompile(code: CodeType) -> tuple[str, str]:
    """Decompile bytecode with depyf.

    Returns:
        The Python source, and the reason why there is none; one of the two is empty.
    """
    size = len(code.co_code)
    if size > MOST_BYTES:
        return "", f"its bytecode is {size:,} bytes long, too long to decompile in reasonable time"
    try:
        import depyf
    except ImportError:
        return "", "depyf is not installed"
    try:
        return clean(str(depyf.decompile(code))).strip("\n"), ""
    except Exception as error:  # it raises whatever it runs into: unknown instructions, an empty stack
        said = str(error).removeprefix("DecompilationError: ").strip().splitlines()
        return "", f"depyf cannot decompile it ({type(error).__name__}: {said[0] if said else ''})"
