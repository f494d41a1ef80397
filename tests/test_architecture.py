"""The house rules that a reader of the code may rely on, read off the sources without running them."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(path for room in ("labkit", "course") for path in (ROOT / room).rglob("*.py"))
LEDGER = sorted((ROOT / "ledger").rglob("*.py"))

# imports go down this list only; what stands in one folder may import its neighbours
ORDER = (
    "course ledger __main__ cli doctor lessons study views shm"
    " ranks report timing per_rank pace hardware registry files torch_compat"
).split()
# the one import that runs upwards: a rank of that backend needs its process group
UPWARDS = "labkit.ranks.worker imports labkit.shm"


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def part(dotted: str) -> str | None:
    """The entry of ORDER that a module of ours belongs to; None for labkit itself, whose names are lazy."""
    first, _, rest = dotted.partition(".")
    return (
        rest.partition(".")[0]
        if first == "labkit" and rest
        else first
        if first in ("course", "ledger")
        else None
    )


def names_of(path: Path) -> tuple[str, str]:
    """A module's dotted name, and the package that its relative imports start from."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name, name if path.name == "__init__.py" else name.rpartition(".")[0]


@functools.cache
def imports(tree: ast.AST, package: str) -> list[tuple[str, ast.stmt]]:
    """Every module or name that is imported, anywhere in the file, with its full dotted path."""
    found: list[tuple[str, ast.stmt]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            found += [(f"{base}.{alias.name}", node) for alias in node.names]
    return found


def test_imports_run_down_the_list():
    upwards = set()
    for path in [*MODULES, *LEDGER]:
        importer, package = names_of(path)
        here = part(importer)
        if here is None:  # labkit/__init__.py resolves names of every part on first use
            continue
        for dotted, _ in imports(parse(path), package):
            there = part(dotted)
            if there in ORDER and ORDER.index(there) < ORDER.index(here):
                upwards.add(f"{importer} imports {dotted}")
    assert upwards == {UPWARDS}


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


ASK = ("require", "find", "replaced")  # what takes a torch name within torch_compat
# private attributes there of objects, not of modules; and a name that no version has, but builds with CUDA
OF_OBJECTS = {"_getframe", "_timeout", "_devices", "_replace", "_allgather_base", "_orig_mod"}
OF_OBJECTS |= {
    "_torchdynamo_disable",
    "_torchdynamo_orig_callable",
    "_dump_nccl_trace",
    "_all_gather_result",
    "_get_ddp_logging_data",
    "_use_python_reducer",
    "_lazy_init_ran",
    "_comm_hooks",
    "_compiled_call_impl",
}
NOT_LITERAL = {"functional_op", "patched"}  # operators of a namespace, settings of a compiler


def asked(tree: ast.AST) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ASK]


def texts_in(tree: ast.AST) -> list[ast.Constant]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def not_asked_for(tree: ast.AST, names: list[str]) -> list[str]:
    """Private names that are reached without asking for them whole; the text of a module is part of such a name."""
    told = [(text.lineno, text.value) for text in texts_in(tree)]
    parts = {f"line {line}: {text}" for line, text in told if any(name.startswith(text) for name in names)}
    reached = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            reached += [arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)]
    private = {name for name in reached if re.match("_(?!_)", name)}
    return sorted({*private_torch_names(tree)} - parts) + sorted(private - OF_OBJECTS)


def test_the_map_shows_what_is_imported():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("```mermaid")[2]
    drawn: dict[str, set[str]] = {}
    for one, other in re.findall(r"^ *(\w+) --> (\w+)$", text.partition("```")[0], re.MULTILINE):
        drawn.setdefault(one, set()).add(other)

    def below(room: str) -> set[str]:
        direct = drawn.get(room, set())
        return direct.union(*map(below, direct))

    found: set[tuple[str, str]] = set()
    for path in [*MODULES, *LEDGER]:
        importer, package = names_of(path)
        here = part(importer)
        for dotted, _ in imports(parse(path), package):
            there = "oddrank" if dotted.partition(".")[0] == "oddrank" else part(dotted)
            if here in ORDER and there in (*ORDER, "oddrank") and here != there:
                found.add((here, there))
    found -= {("ranks", "shm"), ("__main__", "cli")}
    assert not {f"{one} --> {other}" for one, other in found if other not in below(one)}, "the map lacks them"
    unused = {(one, other) for one in drawn for other in drawn[one]} - found
    assert unused == set(), "nothing imports them"


def test_in_it_each_private_torch_name_is_asked_for_by_its_whole_name():
    theirs = sorted((ROOT / "oddrank" / "src" / "oddrank" / "torch_names").glob("*.py"))
    trees = {
        path: parse(path)
        for path in (*MODULES, *theirs)
        if path.parent.name in ("torch_compat", "torch_names")
    }
    names = [text.value for tree in trees.values() for call in asked(tree) for text in texts_in(call)]
    names.append("torch.__trace")  # a logger's
    found = {path.name: not_asked_for(tree, names) for path, tree in trees.items()}
    assert {path: texts for path, texts in found.items() if texts} == {}
    others = {
        function.name
        for path, tree in trees.items()
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and function.name not in ASK
        for call in asked(function)
        if not isinstance(call.args[0], ast.Constant)
    }
    assert others == NOT_LITERAL


def test_private_torch_names_stand_in_one_package():
    found = {path for path in MODULES if private_torch_names(parse(path))}
    assert {path.parent.name for path in found} == {"torch_compat"}, found


def test_every_package_that_labkit_imports_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["notebooks"]
    declared = {Requirement(line).name.lower() for line in lines}
    providers = importlib.metadata.packages_distributions()
    for path in MODULES:
        for dotted, node in imports(parse(path), ""):
            root = dotted.split(".")[0]
            if root and root not in ("labkit", "course") and root not in sys.stdlib_module_names:
                names = {name.lower() for name in providers.get(root, [root])}
                assert names & declared, f"{path.name}, line {node.lineno}: {root} is not in pyproject.toml"
