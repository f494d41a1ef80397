"""What the documentation quotes of a command's output, to be looked for in what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pattern(page: str, command: str, vary: str = "") -> re.Pattern[str]:
    """The block of a page that begins with `$ COMMAND`, as a pattern of the output.

    Args:
        page: a file of the checkout.
        command: how the command begins.
        vary: a pattern of what is another at each run, such as a time.

    Returns:
        The pattern: `...` at the end of a line stands for the rest of it, on a line of its own for any lines.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = re.findall(rf"```text\n\$ {re.escape(command)}.*\n((?s:.*?\n))```", text)
    lines = []
    for line in block.splitlines():
        start = line.removesuffix("...")
        parts = re.split(vary, start) if vary else [start]
        rest = "" if line == start else ".*" if start else "(?:.*\\n)*?.*"
        lines.append(vary.join(map(re.escape, parts)) + rest)
    return re.compile("\n".join(lines) + "\n")
