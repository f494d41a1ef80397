"""The house rules that a reader of the code may rely on, read off the sources without running them."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "labkit").rglob("*.py"))
MOST_LINES = 350

# imports go down this list only; what stands in one folder may import its neighbours
ORDER = (
    "__main__ cli runs doctor study experiments views contract tensor_parallel graphs trace streams ranks"
    " report per_rank timing hardware places files screen torch_compat"
).split()
COMPAT = (  # the same within torch_compat
    "__init__ table cold together pretend streams dtensor dispatch backends recording compiler groups versions"
).split()


def each(modules: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", modules, ids=lambda p: str(p.relative_to(ROOT / "labkit")))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def part(dotted: str) -> str | None:
    """The entry of ORDER that a module of labkit belongs to; None for labkit itself, whose names are lazy."""
    return dotted.split(".")[1] if dotted.startswith("labkit.") else None


def name_of(path: Path) -> str:
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return dotted.removesuffix(".__init__")


def imports(tree: ast.AST, package: str) -> Iterator[tuple[str, ast.stmt]]:
    """Every module or name that is imported, anywhere in the file, with its full dotted path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from ((f"{base}.{alias.name}", node) for alias in node.names)


def upward_imports(source: str, importer: str, package: str) -> list[str]:
    here, found = part(importer), []
    if here is None:  # labkit/__init__.py resolves names of every part on first use
        return []
    for dotted, node in imports(ast.parse(source), package):
        there = part(dotted)
        if there and there in ORDER and ORDER.index(there) < ORDER.index(here):
            found.append(f"line {node.lineno}: {importer} imports {dotted}, which stands above it")
    return found


@each(MODULES)
def test_imports_run_down_the_list(path):
    importer = name_of(path)
    package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
    assert part(importer) in (None, *ORDER), f"{importer} has no place in the list of parts"
    assert upward_imports(path.read_text(), importer, package) == []


def reachable(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Every pair that the edges join, directly or through others."""
    whole = set(edges)
    while more := {(a, d) for a, b in whole for c, d in whole if b == c} - whole:
        whole |= more
    return whole


def test_the_map_in_the_documentation_is_the_imports_that_there_are():
    real = set()
    for path in MODULES:
        importer = name_of(path)
        package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
        here = part(importer)
        there = {part(dotted) for dotted, _ in imports(parse(path), package)}
        real |= {(here, t) for t in there & set(ORDER) - {here} if here not in (None, "__main__")}
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", (ROOT / "docs" / "architecture.md").read_text(), re.M))
    assert reachable(drawn) == reachable(real)
    for edge in drawn:
        assert edge not in reachable(drawn - {edge}), f"{edge} says nothing that the others do not"


def test_an_upward_import_would_be_found():
    assert upward_imports("from labkit.views import strip", "labkit.ranks.pool", "labkit.ranks")
    assert upward_imports("def f():\n    from ..views import strip", "labkit.ranks.pool", "labkit.ranks")
    assert upward_imports("from labkit import cli", "labkit.report", "labkit")
    assert not upward_imports("from . import wire\nimport labkit.report", "labkit.ranks.pool", "labkit.ranks")


@each([p for p in MODULES if p.parent.name == "views"])
def test_views_never_import_torch(path):
    roots = {dotted.split(".")[0] for dotted, _ in imports(parse(path), "labkit.views")}
    assert "torch" not in roots


def private_torch_names(tree: ast.AST) -> list[str]:
    """Dotted torch names with a private part, imported, reached by attributes, or written as a string."""
    aliases, found = {"torch": "torch"}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname: a.name for a in node.names if a.asname}
            found += [(node.lineno, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            found += [(node.lineno, f"{node.module}.{a.name}") for a in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.append((node.lineno, dotted_path(node, aliases)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"torch(\.\w+)+", node.value):
                found.append((node.lineno, node.value))
    return [f"line {line}: {dotted}" for line, dotted in found if is_private_torch(dotted)]


def dotted_path(node: ast.expr, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted_path(node.value, aliases)}.{node.attr}"
    return aliases.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def is_private_torch(dotted: str) -> bool:
    first, *rest = dotted.split(".")
    return first == "torch" and any(s.startswith("_") and not s.endswith("__") for s in rest)


@each([p for p in MODULES if p.parent.name != "torch_compat"])
def test_private_torch_names_stand_in_one_package(path):
    assert private_torch_names(parse(path)) == []


@each([p for p in MODULES if p.parent.name == "torch_compat"])
def test_its_parts_import_down_the_list_and_never_torch_itself(path):
    here, tree = COMPAT.index(path.stem), parse(path)
    inside = [dotted.split(".") for dotted, _ in imports(tree, "labkit.torch_compat")]
    for there in [names[2] for names in inside if names[:2] == ["labkit", "torch_compat"]]:
        assert there in COMPAT and COMPAT.index(there) > here, f"{path.name} imports {there}"
    first = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    assert "torch" not in {dotted.split(".")[0] for dotted, _ in imports(first, "")}


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "import torch._dynamo as dynamo",
        "from torch import _C",
        "from torch.distributed import _functional_collectives as funcol",
        "import torch\ntorch._dynamo.reset()",
        "import torch.distributed as dist\ndist._get_default_group()",
        "from torch import distributed\ndistributed.distributed_c10d._world",
        'logging.getLogger("torch.__trace")',
    ],
)
def test_a_private_torch_name_would_be_found(source):
    assert private_torch_names(ast.parse(source))


def test_public_torch_names_are_free():
    source = "import torch\nimport torch.nn as nn\ntorch.__version__\nnn.Linear\nself._x\nrequire('funcol')"
    assert private_torch_names(ast.parse(source)) == []


@each(MODULES)
def test_a_file_is_one_idea(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES


@each(MODULES)
def test_what_is_public_says_what_it_is_for(path):
    tree = parse(path)
    assert ast.get_docstring(tree), "the module has no docstring"
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [n for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]
    assert [n.name for n in public if not ast.get_docstring(n)] == []


def test_every_package_that_labkit_imports_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["notebooks"]
    declared = {Requirement(line).name.lower() for line in lines}
    providers = importlib.metadata.packages_distributions()
    for path in MODULES:
        for dotted, node in imports(parse(path), ""):
            root = dotted.split(".")[0]
            if root and root != "labkit" and root not in sys.stdlib_module_names:
                names = {name.lower() for name in providers.get(root, [root])}
                assert names & declared, f"{path.name}, line {node.lineno}: {root} is not in pyproject.toml"


@pytest.mark.parametrize("folder", ["labkit", "notebooks", "tests", "docs", "."])
def test_nothing_committed_names_a_folder_of_the_machine_it_was_made_on(folder):
    kinds = {".py", ".md", ".toml", ".yml", ".csv", ".json", ".lock", ".svg", ".css"}
    files = (ROOT / folder).iterdir() if folder == "." else (ROOT / folder).rglob("*")
    for path in files:
        if path.suffix in kinds and "__pycache__" not in path.parts:
            assert str(ROOT) + "/" not in path.read_text(), f"{path} names {ROOT}"
