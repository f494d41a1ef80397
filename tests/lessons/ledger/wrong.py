"""Plausible wrong answers to the exercise of lesson 19, each with words of the hint that is meant for it."""

from __future__ import annotations

from labkit.study.checks import cannot_tell, verdict


def counts(seen):
    return [row["at_collective"] for row in seen["B"]]


def always_holds(seen):
    return verdict(True, f"{counts(seen)} breaks")


def reads_the_wrong_counter(seen):
    return verdict(
        all(row["breaks"] == 4 * seen["blocks"] for row in seen["B"]), f"{counts(seen)} at a collective"
    )


def the_first_rank_only(seen):
    return verdict(seen["B"][0]["at_collective"] == 4 * seen["blocks"], f"{counts(seen)}")


def the_figure_as_it_stands(seen):
    return verdict(all(n == 160 for n in counts(seen)), f"{counts(seen)}")


def at_least(seen):
    return verdict(all(n >= 4 * seen["blocks"] for n in counts(seen)), f"{counts(seen)}")


def all_of_nothing(seen):
    found = counts(seen)
    return verdict(all(n == 4 * seen["blocks"] for n in found), f"{found}")


def says_no_number(seen):
    return verdict(all(n == 4 * seen["blocks"] for n in counts(seen)), "as expected")


def answers_yes_or_no(seen):
    return all(n == 4 * seen["blocks"] for n in counts(seen))


def gives_up(seen):
    return cannot_tell("it depends")


JUDGES = {
    always_holds: "a check that cannot fail is none",
    reads_the_wrong_counter: "count other things",
    the_first_rank_only: "look at every rank",
    the_figure_as_it_stands: "160 is the figure of forty blocks",
    at_least: "twice as many breaks are not one at each",
    all_of_nothing: "all() of nothing is True",
    says_no_number: "a status alone convinces nobody",
    gives_up: "cannot_tell is for one that is missing",
    answers_yes_or_no: "returns verdict(...) or cannot_tell(...)",
}


WRONG = {"ledger.judge": JUDGES}
