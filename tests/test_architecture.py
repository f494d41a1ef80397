"""The house rules that a reader of the code may rely on, read off the sources without running them."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from labkit import registry

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(path for room in ("labkit", "course") for path in (ROOT / room).rglob("*.py"))
LEDGER = sorted((ROOT / "ledger").rglob("*.py"))
MOST_LINES = 600

# imports go down this list only; what stands in one folder may import its neighbours
ORDER = (
    "course ledger __main__ cli look postmortem doctor lessons study views page tlparse contract records trace shm"
    " ranks environments report timing per_rank pace hardware places registry bounds files packages torch_compat"
).split()
# the one import that runs upwards: a rank of that backend needs its process group
UPWARDS = {("labkit.ranks.worker", "labkit.shm")}
# nothing else of labkit imports these; their commands are found through a table of names in cli.py
ROOMS = {"look", "contract", "postmortem"}
COMPAT = (  # the same within torch_compat
    "__init__ names cold pretend streams gradients effects dtensor dispatch backends recording compiler groups versions"
).split()


@functools.cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def parse(path: Path) -> ast.Module:
    return parsed(path.read_text())


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


def upward_imports(source: str, importer: str, package: str) -> list[str]:
    here, found = part(importer), []
    if here is None:  # labkit/__init__.py resolves names of every part on first use
        return []
    for dotted, node in imports(parsed(source), package):
        there = part(dotted)
        if (importer, dotted) in UPWARDS:
            continue
        if there and there in ORDER and ORDER.index(there) < ORDER.index(here):
            found.append(f"line {node.lineno}: {importer} imports {dotted}, which stands above it")
    return found


def test_imports_run_down_the_list():
    found = []
    for path in [*MODULES, *LEDGER]:
        importer, package = names_of(path)
        assert part(importer) in (None, *ORDER), f"{importer} has no place in the list of parts"
        found += upward_imports(path.read_text(), importer, package)
    assert found == []


def strangers(dotted: list[str], importer: str) -> list[str]:
    """Imports by which a module of one topic reaches into another; `shared` is for all of them."""
    topic = importer.split(".")[1]
    lessons = [name for name in dotted if name.startswith("course.")]
    return [name for name in lessons if name.split(".")[1] not in (topic, "shared")]


def test_the_rest_of_labkit_imports_no_room():
    for path in MODULES:
        importer, package = names_of(path)
        if part(importer) not in (None, "course", *ROOMS):
            found = {part(dotted) for dotted, _ in imports(parse(path), package)} & (
                ROOMS | {"course", "ledger"}
            )
            assert not found, f"{importer} imports {found}"


def test_the_course_and_the_ledger_do_not_meet():
    for path in [*MODULES, *LEDGER]:
        importer, package = names_of(path)
        rooms = {part(dotted) for dotted, _ in imports(parse(path), package)} & {"course", "ledger"}
        assert rooms <= {part(importer)}, f"{importer} imports {rooms}"


def test_topics_meet_in_shared_only():
    found = []
    for path in MODULES:
        importer, package = names_of(path)
        if part(importer) == "course" and importer != "course":
            reached = strangers([dotted for dotted, _ in imports(parse(path), package)], importer)
            found += [f"{importer} imports {dotted}" for dotted in reached]
    assert found == []


def test_an_import_from_another_topic_would_be_found():
    assert strangers(["course.trap.tables"], "course.cliff.figures")
    assert strangers(["course.trap"], "course.shared.harness")
    assert not strangers(["course.shared.harness", "labkit.ranks"], "course.cliff.figures")


def test_every_topic_is_registered_and_its_package_holds_nothing_else():
    course = ROOT / "course"
    packages = {path.parent.name for path in course.glob("*/__init__.py")}
    assert packages == {*registry.TOPICS, "shared"}
    for topic in packages - {"shared"}:
        body = parse(course / topic / "__init__.py").body
        assert len(body) == 1, f"the package of topic {topic} has its docstring, and nothing to import"


def reachable(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Every pair that the edges join, directly or through others."""
    whole = set(edges)
    while more := {(a, d) for a, b in whole for c, d in whole if b == c} - whole:
        whole |= more
    return whole


def test_the_map_in_the_documentation_is_the_imports_that_there_are():
    real = set()
    for path in [*MODULES, *LEDGER]:
        importer, package = names_of(path)
        here = part(importer)
        dotted = {name for name, _ in imports(parse(path), package) if (importer, name) not in UPWARDS}
        there = set(map(part, dotted))
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


def draws(path: Path) -> bool:
    return path.parent.name == "views" or path.stem.endswith("figures")


def test_what_draws_imports_neither_torch_nor_an_experiment():
    found = []
    for path in filter(draws, MODULES):
        importer, package = names_of(path)
        for dotted, _ in imports(parse(path), package):
            if dotted.split(".")[0] == "torch" or re.search(r"\.experiment\b", dotted):
                found.append(f"{importer} imports {dotted}")
    assert found == []


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
    "_torchdynamo_orig_callable",
    "_dump_nccl_trace",
    "_all_gather_result",
    "_get_ddp_logging_data",
    "_use_python_reducer",
    "_lazy_init_ran",
    "_comm_hooks",
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


def test_in_it_each_private_torch_name_is_asked_for_by_its_whole_name():
    trees = {path: parse(path) for path in MODULES if path.parent.name == "torch_compat"}
    names = [text.value for tree in trees.values() for call in asked(tree) for text in texts_in(call)]
    names.append("torch.__trace")  # a logger's
    found = {path.name: not_asked_for(tree, names) for path, tree in trees.items()}
    assert {path: texts for path, texts in found.items() if texts} == {}
    others = {
        function.name
        for path, tree in trees.items()
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and path.name != "versions.py"
        for call in asked(function)
        if not isinstance(call.args[0], ast.Constant)
    }
    assert others == NOT_LITERAL


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._dynamo.config",
        'require("torch._dynamo")._enable()',
        'getattr(require("torch._C"), "_profiler", None)',
        'sys.modules.get("torch._inductor.codecache")',
        "import torch._dynamo",
    ],
)
def test_a_private_torch_name_that_is_not_asked_for_would_be_found(source):
    assert not_asked_for(ast.parse(source), ["torch._dynamo.reset"])


def test_private_torch_names_stand_in_one_package():
    others = [path for path in MODULES if path.parent.name != "torch_compat"]
    found = {str(path.relative_to(ROOT)): private_torch_names(parse(path)) for path in others}
    assert {path: names for path, names in found.items() if names} == {}


def test_its_parts_import_down_the_list_and_never_torch_itself():
    for path in [path for path in MODULES if path.parent.name == "torch_compat"]:
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


def test_a_file_is_one_idea():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_what_is_public_says_what_it_is_for():
    silent = []
    for path in MODULES:
        tree = parse(path)
        assert ast.get_docstring(tree), f"{path.relative_to(ROOT)} has no docstring"
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        public = [n for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]
        silent += [f"{path.relative_to(ROOT)}: {n.name}" for n in public if not ast.get_docstring(n)]
    assert silent == []


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


@pytest.mark.parametrize("folder", ["labkit", "course", "ledger", "notebooks", "tests", "docs", "."])
def test_nothing_committed_names_a_folder_of_the_machine_it_was_made_on(folder):
    kinds = {".py", ".md", ".toml", ".yml", ".csv", ".json", ".lock", ".svg", ".css"}
    files = (ROOT / folder).iterdir() if folder == "." else (ROOT / folder).rglob("*")
    for path in files:
        if path.suffix in kinds and "__pycache__" not in path.parts:
            assert str(ROOT) + "/" not in path.read_text(), f"{path} names {ROOT}"
