"""The table of features that stand on private torch names: complete, within the supported range, and what it tells."""

from __future__ import annotations

import ast
import re
import types
from importlib import metadata
from pathlib import Path

import pytest

from labkit import cli, doctor, torch_compat
from labkit.torch_compat import Feature

FOLDER = Path(torch_compat.__file__).parent
PARTS = pytest.mark.parametrize("part", torch_compat.PARTS, ids=lambda part: part.__name__.rpartition(".")[2])


def asked(tree: ast.AST) -> list[str]:
    """What `require` is called with: whole names, and of a name made up as it runs the modules it begins with."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "require":
            either = node.args[0]
            for name in (either.body, either.orelse) if isinstance(either, ast.IfExp) else (either,):
                if isinstance(name, ast.JoinedStr):
                    found.append(name.values[0].value.rpartition(".")[0])
                elif isinstance(name, ast.Constant):  # and not a variable, as the slides' table has it
                    found.append(name.value)
    return found


def lacking(names: list[str], needs: set[str]) -> list[str]:
    return [name for name in names if not any(f"{need}.".startswith(f"{name}.") for need in needs)]


def needs(part) -> set[str]:
    return {name for feature in part.FEATURES for need in feature.needs for name in need.split()}


def test_every_part_is_in_the_table():
    parts = {Path(part.__file__).name for part in torch_compat.PARTS}
    assert parts == {path.name for path in FOLDER.glob("*.py")} - {"__init__.py", "versions.py"}
    assert all(part.FEATURES for part in torch_compat.PARTS)


@PARTS
def test_every_name_that_a_part_asks_for_belongs_to_a_feature_of_it(part):
    names = asked(ast.parse(Path(part.__file__).read_text()))
    assert lacking(names, needs(part)) == []


def test_a_name_without_a_feature_would_be_found():
    tree = ast.parse(
        'require("torch._x.a").b\nrequire(f"torch._y.{n}" if n else "torch._w")\nrequire("torch._z")'
    )
    assert lacking(asked(tree), {"torch._x.a.b", "torch._y.some", "torch._zz"}) == ["torch._w", "torch._z"]


@PARTS
def test_every_name_of_a_feature_is_used_by_the_part(part):
    tree = ast.parse(Path(part.__file__).read_text())
    tree.body = [node for node in tree.body if "FEATURES" not in ast.unparse(node).split(" = ")[0]]
    words = set(re.findall(r"\w+", ast.unparse(tree)))
    assert {name for name in needs(part) if name.rpartition(".")[2] not in words} == set()


def test_the_doctor_says_what_passed_on_a_version_that_was_run_in_part():
    assert torch_compat.RUN.keys().isdisjoint(torch_compat.TESTED)
    for version, passed in torch_compat.RUN.items():
        torch_compat.check_version(version)
        assert (
            doctor._tested(f"{version}+cpu")
            == f"torch {version}: {passed}; tested in full: 2.13.0 and 2.15.0"
        )
    assert "not tested; tested in full: 2.13.0" in doctor._tested("2.14.7")


def test_titles_are_told_apart_and_say_what_is_lost():
    features = [feature for feature, _ in torch_compat.features()]
    assert len({feature.title for feature in features}) == len(features)
    assert all(feature.needs and feature.without and feature.source for feature in features)


def test_the_names_of_a_tested_torch_are_those_of_the_ranges():
    import torch

    plain = torch.__version__.partition("+")[0]
    if plain not in torch_compat.TESTED:
        pytest.skip(f"torch {plain} is not one that the ranges were tested on")
    assert [(f.title, f.versions, m) for f, m in torch_compat.features() if m] == []


@pytest.mark.parametrize(
    "since, until", [("2.10", "2.12"), ("2.12", "2.16"), ("2.14", "2.12"), ("2.12", ""), ("", "x")]
)
def test_a_range_that_is_none_is_refused(since, until):
    with pytest.raises(ValueError, match="one feature.*no range within 2.11 to 2.15"):
        Feature("one feature", (), "nothing", since, until)


def test_of_other_names_for_the_same_one_is_enough():
    either = Feature("f", ("torch._dynamo.reset torch._dynamo.nothing",), "nothing", "2.13", "2.13")
    assert either.missing() == () and either.versions == "2.13"


def test_a_missing_name_is_told_with_what_is_lost(monkeypatch, capsys):
    from torch._inductor import cpu_vec_isa

    before = doctor.examine()
    monkeypatch.delattr(cpu_vec_isa, "VecISA")
    rows = [
        text
        for word, text in doctor.examine()
        if word in ("private", "lacking") and (word, text) not in before
    ]
    assert len(rows) == 2
    lacks = [text for _, text in before if "this torch lacks" in text]  # 2.11 lacks others as well
    named = "(.*, )?torch._inductor.cpu_vec_isa.VecISA[:,]"
    alone = "torch._inductor.cpu_vec_isa.VecISA:"
    assert re.search(f"this torch lacks {named if lacks else alone}", rows[0])
    assert rows[1] == (
        "Inductor's check of the CPU (torch 2.11 to 2.15): no torch._inductor.cpu_vec_isa.VecISA.check_build;"
        " lost is Inductor in lesson 12"
    )
    assert cli.main(["doctor", "--features"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^Inductor's check of the CPU +2\.11 to 2\.15  0 of 1$", printed, re.M)
    streams = 1 if metadata.version("torch").startswith("2.11.") else 2
    assert re.search(rf"^streams in compiled graphs +2\.12 to 2\.15  {streams} of 2$", printed, re.M)
    assert f"Ranges: {torch_compat.READ}" in printed
    with pytest.raises(torch_compat.UnsupportedTorch, match="has no torch._inductor.cpu_vec_isa.VecISA"):
        with torch_compat.compile_events():
            pass


def test_without_a_missing_name_the_doctor_says_nothing_of_features(monkeypatch):
    monkeypatch.setattr(
        torch_compat, "features", lambda: [(f, ()) for part in torch_compat.PARTS for f in part.FEATURES]
    )
    assert "lacking" not in dict(doctor.examine())


def test_importing_it_imports_no_torch():
    import subprocess
    import sys

    code = "import sys; from labkit import torch_compat; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_overlap_scheduling_states_a_time_where_torch_would_measure_on_a_gpu(monkeypatch):
    import torch

    from labkit.torch_compat import compiler

    name = "aten_distributed_optimizations.custom_runtime_estimation"
    older = types.SimpleNamespace(aten_distributed_optimizations=types.SimpleNamespace())
    monkeypatch.setattr(compiler, "require", lambda dotted: older)
    stated = compiler.overlap_scheduling()[name]
    nodes = [
        types.SimpleNamespace(target=op) for op in (torch.ops.aten.mm.default, torch.ops.aten.add.Tensor)
    ]
    assert [stated(node) for node in nodes] == [1.0, None]
    assert compiler.overlap_scheduling(custom_runtime_estimation=len)[name] is len
    older.aten_distributed_optimizations.compute_estimator = "benchmark"
    assert name not in compiler.overlap_scheduling()
