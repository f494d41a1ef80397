"""The program of a lesson as a plain script: its tagged cells, and the cell that is its main, without labkit."""

from __future__ import annotations

import ast

from labkit.lessons.programs import cells

__all__ = ["script"]

MAIN = "main"


def script(lesson: str) -> str:
    """Write a lesson's program as a script that torchrun can run.

    Imports come first, then the cells that are tagged `program`, then the one that is tagged `main`.

    Raises:
        ValueError: the lesson has no program, no main, or a cell that imports more than torch and Python's own.

    >>> text = script("04_graph_break_cliff")
    >>> "import labkit" in text, "def main(" in text
    (False, True)
    """
    parts = cells(lesson)
    try:
        mains = cells(lesson, MAIN)
    except ValueError:
        raise ValueError(f"lesson {lesson} has no script: none of its cells is tagged `{MAIN}`") from None
    if len(mains) != 1:
        raise ValueError(f"lesson {lesson} has {len(mains)} cells tagged `{MAIN}`, and a script has one main")
    imports: dict[str, None] = {}
    bodies = []
    for label, source in (parts | mains).items():
        lines = source.splitlines()
        for node in ast.parse(source, label).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                if str(module).partition(".")[0] in ("labkit", "course"):
                    raise ValueError(f"{label}:{node.lineno} imports {module}: a script gets by without it")
                for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                    lines[number] = ""
                imports[ast.unparse(node)] = None
        bodies.append(f"# {label}\n" + "\n".join(lines).strip())
    head = f'"""The program of lesson {lesson}, as `labkit program` writes it: torchrun --nproc-per-node 2 ..."""'
    order = sorted(imports, key=lambda line: (line.startswith("from"), line))
    groups = [
        [line for line in order if line.split()[1].startswith("torch") is torchs] for torchs in (False, True)
    ]
    top = "\n\n".join("\n".join(group) for group in groups if group)
    return "\n\n\n".join([f"{head}\n\n{top}", *bodies]) + "\n"
