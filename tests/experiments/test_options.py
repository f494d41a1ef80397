"""What an experiment takes from the command line, and that it refuses what belongs to another one."""

from __future__ import annotations

import argparse
import inspect

import pytest

from labkit import experiments
from labkit.experiments.options import Option, add, chosen

BLOCKS, COLD = Option("blocks", int, "blocks"), Option("cold", bool, "")
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


@pytest.mark.parametrize("name", experiments.NAMES)
def test_every_option_is_a_keyword_of_the_experiment(name):
    experiment = experiments.get(name)
    parameters = inspect.signature(experiment.run).parameters
    assert {option.name for option in experiment.OPTIONS} <= set(parameters)
    assert {"ranks", "talk"} <= set(parameters)
    assert experiment.LINK in ("gloo", "shm")
    assert experiment.QUESTION.endswith("?") and experiment.TITLE and experiment.SOURCE
