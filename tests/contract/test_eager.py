"""The guardrail of the eager path: it counts, it names what went functional, and it cannot pass on nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from labkit.contract import eager


def look(path, **limits):
    """On a rank: what the guardrail says of a path, and the operations that it counted."""
    import torch

    from labkit.contract import assert_in_place, dispatched

    x = torch.ones(8)
    with torch.no_grad():
        counted = dict(dispatched(lambda: path(x)))
        try:
            assert_in_place(lambda: path(x), **limits)
        except AssertionError as error:
            return counted, str(error)
    return counted, ""


@pytest.fixture(scope="module", params=["shm", "gloo"])
def two(request):
    import labkit

    with labkit.Ranks(2, device="cpu", backend=request.param, timeout=60, quiet=True) as ranks:
        yield ranks


def test_the_gate_and_the_in_place_form_pass(two):
    from course.cliff.program import gated, inplace

    for path in (gated, inplace):
        counted, said = two.run(look, path).same()
        assert said == "" and len(counted) == 1 and sum(counted.values()) == 1, (counted, said)


def test_a_functional_path_fails_and_its_operations_are_named(two):
    from course.cliff.program import functional

    for path in (functional, lambda x: x.copy_(functional(x))):
        counted, said = two.run(look, path).same()
        assert said.startswith("the eager path went functional: ") and "_c10d_functional::all_reduce" in said
        assert counted["aten::clone"] == 1 and counted["_c10d_functional::all_reduce"] == 1


def test_a_path_without_a_collective_fails(two):
    counted, said = two.run(look, lambda x: x.neg()).same()
    assert said == "0 collectives ran, at least 1 was expected: this guards nothing"
    assert counted == {"aten::neg": 1}


def test_what_a_collective_does_inside_is_not_counted(two):
    def gather(x):
        import warnings

        import torch.distributed as dist

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.all_gather_into_tensor(x.new_empty(16), x)

    counted, said = two.run(look, gather).same()
    assert said == "" and not {"aten::chunk", "aten::copy_"} & set(counted)


def test_more_collectives_or_fewer_operations_can_be_asked_for(two):
    from course.cliff.program import inplace

    _, said = two.run(look, inplace, at_least=2).same()
    assert said == "1 collectives ran, at least 2 were expected: this guards nothing"
    _, said = two.run(look, lambda x: inplace(x).clone(), at_most=1).same()
    assert said.endswith("operations ran, at most 1 were expected: " + said.partition("expected: ")[2])
    assert "aten::clone" in said


def test_an_error_of_the_call_passes_through():
    def fail():
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        eager.assert_in_place(fail)
    with pytest.raises(AssertionError, match="0 collectives"):  # and the profiler is off again
        eager.assert_in_place(lambda: None)


def test_the_file_can_be_copied_into_any_project(tmp_path):
    shutil.copy(eager.__file__, tmp_path / "guard.py")
    code = (
        "import sys; sys.modules['labkit'] = None\n"  # no import of it can succeed
        "import torch, guard\n"
        "print(dict(guard.assert_in_place(lambda: torch.ones(4).neg_(), at_least=0)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "'aten::neg_': 1" in done.stdout, done.stderr
