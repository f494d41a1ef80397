"""What an experiment takes from the command line, and that it refuses what belongs to another one."""

from __future__ import annotations

import argparse
import inspect

import pytest

from course.break_it import experiment as break_it
from course.cold import experiment as cold
from course.cold import survival
from course.dtensor import experiment as routes
from course.functional import experiment as collectives
from course.guards import drift
from course.mesh import wrong_group
from course.repair import experiment as repair
from course.scale import experiment as scale
from course.shared import variants
from course.symmetry import experiment as divergence
from labkit import experiments, hardware, lessons
from labkit.experiments.options import Option, add, chosen

BLOCKS, COLD = Option("blocks", int, "blocks", least=1, most=99), Option("cold", bool, "")
ALSO = Option("also", str, "more", "X", many=True)


def parsed(declared, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add(parser, declared)
    return parser.parse_args(arguments)


def test_what_was_not_given_is_left_to_the_experiment():
    given = parsed({"one": [BLOCKS, ALSO, COLD]})
    assert chosen("one", [BLOCKS, ALSO, COLD], given) == {}


def test_what_was_given_comes_with_its_type():
    given = parsed({"one": [BLOCKS, ALSO, COLD]}, "--blocks", "4", "--also", "a", "--also", "b", "--cold")
    assert chosen("one", [BLOCKS, ALSO, COLD], given) == {"blocks": 4, "also": ("a", "b"), "cold": True}


def test_an_option_of_another_experiment_is_refused_unless_they_run_together():
    given = parsed({"one": [BLOCKS], "two": [COLD]}, "--blocks", "4")
    with pytest.raises(ValueError, match="two has no --blocks: it takes --cold"):
        chosen("two", [COLD], given, foreign=["blocks", "cold"])
    with pytest.raises(ValueError, match="three has no --blocks: it takes no option of its own"):
        chosen("three", [], given, foreign=["blocks"])
    assert chosen("two", [COLD], given) == {}


def test_an_option_means_one_thing():
    with pytest.raises(ValueError, match="option 'blocks' of two has another meaning elsewhere"):
        parsed({"one": [BLOCKS], "two": [Option("blocks", str, "blocks")]})


@pytest.mark.parametrize("name", experiments.declared())
def test_every_option_is_a_keyword_of_the_experiment(name):
    experiment = experiments.get(name)
    module = experiment.load()
    parameters = inspect.signature(module.run).parameters
    assert {option.name for option in experiment.options} <= set(parameters)
    assert {"ranks", "talk"} <= set(parameters) and set(experiment.record) <= set(parameters)
    assert experiment.cpu_backend in ("gloo", "shm")
    assert experiment.question.endswith("?") and experiment.title and experiment.source
    assert module.ABOUT is experiment
    for part in experiment.parts:
        assert experiments.get(f"{name}/{part}").load() is module


# what the table says without importing a module, and where the module has it
WORDS = {
    ("collectives", "compiler"): collectives.COMPILERS,
    ("divergence", "drill"): divergence.DRILLS,
    ("guards", "dimension"): lessons.program("guards").DIMENSIONS,
    ("guards", "policy"): lessons.program("guards").POLICIES,
    ("drift", "dtype"): drift.DTYPES,
    ("scale", "algorithm"): scale.ALGORITHMS,
    ("wrong_group", "mistake"): wrong_group.MISTAKES,
    ("cold", "form"): cold.FORMS,
    ("survival", "kind"): lessons.program("cold").KINDS,
    ("survival", "change"): [*lessons.program("cold").CHANGES, survival.VARIABLE],
    ("routes", "mlp"): routes.SIZES,
    ("routes", "block"): routes.SIZES,
    ("one_compile", "store"): ("aot_compile", "disk cache", "precompile"),  # the last one since torch 2.15
    ("repair", "stage"): (repair.DELIVERED, *lessons.program("repair").FIXES),
    ("offload", "shape"): ("Small", "Med", "XL"),  # of the program of lesson 07
    **{(name, "also"): hardware.BACKENDS for name in ("cliff", "eager_trap", "scale")},
}


def test_the_table_has_the_words_of_the_modules():
    listed = {
        (experiment.name, option.name): option.among
        for experiment in map(experiments.get, experiments.declared())
        for option in experiment.options
        if option.among
    }
    assert listed == {key: tuple(words) for key, words in WORDS.items()}
    assert experiments.get("break-it").parts == {name: test.broken for name, test in break_it.TESTS.items()}
    letters = next(option for option in experiments.get("cliff").options if option.name == "variants")
    assert letters.read("".join(variants.VARIANTS)) == "ABCDE"


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        (BLOCKS, "10" * 20, "must be a whole number from 1 to 99, got '1010"),
        (BLOCKS, "9" * 5000, r"got '9{37}\.\.\.'$"),
        (BLOCKS, "0", "got '0'"),
        (BLOCKS, "1.5", "got '1.5'"),
        (BLOCKS, "", "got ''"),
        (Option("late", float, "", least=0.5, most=9), "nan", "must be a number from 0.5 to 9, got 'nan'"),
        (Option("late", float, "", least=0.5, most=9), "-inf", "got '-inf'"),
        (Option("late", float, "", most=9), "1e400", "got '1e400'"),
        (Option("form", str, "", among=("a", "b")), "c", "unknown 'c': there is a, b"),
        (
            Option("sizes", str, "sizes such as 4,16K", pattern=r"[\dK,]+"),
            "x",
            "takes sizes such as 4,16K, got 'x'",
        ),
    ],
)
def test_what_an_option_does_not_take_is_named_with_its_rule(option, text, said):
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        option.read(text)
