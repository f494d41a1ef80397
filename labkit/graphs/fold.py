"""What is left out of a stage so that its idea shows: the imports and the benchmark around Inductor's code."""

from __future__ import annotations

__all__ = ["inductor"]

_HEADER_ENDS = (
    "async_compile = AsyncCompile()",
    "# kernel path:",
    "cpp_",
    "triton_",
    "class Runner",
    "def call(",
)
_FOOTER = ("def benchmark_compiled_module", "def get_args():", 'if __name__ == "__main__":', "# AOT ID:")


def inductor(text: str) -> str:
    """Inductor's code without its imports, aliases and benchmark, each counted where it stood.

    >>> print(inductor("import torch\\nimport math\\ndef call(args):\\n    return ()\\ndef get_args():\\n    pass"))
    # ... 2 lines of imports and aliases
    def call(args):
        return ()
    # ... 2 lines of benchmark
    """
    lines: list[str] = []
    part, left = "header", 0

    def close() -> None:
        nonlocal left
        if left:
            what = "imports and aliases" if part == "header" else "benchmark"
            lines.append(f"# ... {left} line{'' if left == 1 else 's'} of {what}")
        left = 0

    for line in text.splitlines():
        if line.startswith("# AOT ID:"):  # of several graphs in one compile, each begins anew
            close()
            part = "header"
            lines.append(line)
            continue
        if part == "header" and line.startswith(_HEADER_ENDS):
            close()
            part = "code"
        elif part == "code" and line.startswith(_FOOTER):
            part = "footer"
        if part == "code":
            lines.append(line)
        elif line.strip():
            left += 1
    close()
    return "\n".join(lines)
