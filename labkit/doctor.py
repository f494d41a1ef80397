"""What this machine has and lacks: hardware, ranks, torch, and the tests that need a GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from labkit import files, hardware, torch_compat

__all__ = ["examine", "features", "gpu_tests"]


def examine() -> list[tuple[str, str]]:
    """Describe this machine.

    Returns:
        Pairs of a keyword and its text.

    Raises:
        UnsupportedTorch: the installed torch is outside of the supported range.

    >>> dict(examine())["Ranks(1)"].split(":")[0] in ("gloo on cpu", "nccl on cuda")
    True
    """
    facts = hardware.describe()
    rows = [
        (key, ", ".join(value) if isinstance(value, list) else str(value)) for key, value in facts.items()
    ]
    for count in (1, 2, 4):
        choice = hardware.choose(count)
        rows.append((f"Ranks({count})", f"{choice.backend} on {choice.device}: {choice.why}"))
    torch_compat.check_version(facts["torch"])
    rows.append(("labkit on", _tested(facts["torch"])))
    known, missing = torch_compat.names()
    lacking = f"; this torch lacks {', '.join(missing)}: what needs one of them says so" if missing else ""
    rows.append(
        (
            "private",
            f"{known - len(missing)} of {known} private names of torch that labkit uses are there{lacking}",
        )
    )
    for feature, lacks in torch_compat.features():
        if lacks:
            what = f"{feature.title} (torch {feature.versions}): no {', '.join(lacks)}"
            rows.append(("lacking", f"{what}; lost is {feature.without}"))
    if tests := gpu_tests():
        where = sorted({path for path, _ in tests})
        there = "run them with: pytest -m gpu" if facts["gpus"] else "not run here, no GPU"
        rows.append(("gpu tests", f"{len(tests)} in {', '.join(where)} ({there})"))
    return rows


def features() -> str:
    """List the features that use private names of torch, in a table: versions of torch that have them, names found
    here.

    Returns:
        The table, with the sources of the version ranges below.

    >>> print(features().splitlines()[1])
    functional collectives                           2.11 to 2.15  2 of 2
    """
    rows, sources = [("feature", "torch", "names there")], {torch_compat.READ: ["Ranges"]}
    for feature, lacks in torch_compat.features():
        known = len(feature.needs)
        rows.append((feature.title, feature.versions, f"{known - len(lacks)} of {known}"))
        if feature.source != torch_compat.READ:
            sources.setdefault(feature.source, []).append(feature.title)
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [f"{title:<{wide[0]}}  {versions:<{wide[1]}}  {names}" for title, versions, names in rows]
    return "\n".join([*table, "", *(f"{', '.join(titles)}: {source}" for source, titles in sources.items())])


def _tested(version: str) -> str:
    plain = version.partition("+")[0]
    low, high = torch_compat.SUPPORTED
    if plain in torch_compat.TESTED:
        return f"torch {plain}: tested in full"
    others = " and ".join(torch_compat.TESTED)
    if plain in torch_compat.RUN:
        return f"torch {plain}: {torch_compat.RUN[plain]}; tested in full: {others}"
    return f"torch {plain}: within the supported {low} to {high}, but not tested; tested in full: {others}"


def gpu_tests() -> list[tuple[str, str]]:
    """List the tests marked `gpu` in this checkout.

    Returns:
        Pairs of file and name; empty where labkit was installed without its repository.

    >>> "tests/lessons/streams/test_cuda.py" in {path for path, _ in gpu_tests()}
    True
    """
    root = files.ours("notebooks").parent
    return [
        (str(path.relative_to(root)), name)
        for path in sorted((root / "tests").rglob("test_*.py"))
        for name in _marked(path)
    ]


def _marked(path: Path) -> Iterator[str]:
    """Names of tests under `pytest.mark.gpu`, by a decorator or by the file's `pytestmark`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    whole = any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
        and _says_gpu(node.value)
        for node in tree.body
    )
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            if whole or any(_says_gpu(decorator) for decorator in node.decorator_list):
                yield node.name


def _says_gpu(node: ast.AST) -> bool:
    return any(
        ast.unparse(part) == "pytest.mark.gpu" for part in ast.walk(node) if isinstance(part, ast.Attribute)
    )
