"""Plausible wrong answers to the exercises of lesson 19, each with words of the hint that is meant for it."""

from __future__ import annotations

from ledger.trial import CannotTell, part

PASSES, EQUAL = "the gradient passes", "is one process's"


def parts(passes, equal, seen):
    yield part(PASSES, passes, seen["error"] or "no error")
    yield part(EQUAL, equal, f"{seen['gradient']}, and {seen['one_process']} is right")


def always_right(seen):
    yield from parts(True, True, seen)


def only_the_error(seen):
    yield from parts(not seen["error"], not seen["error"], seen)


def equality_for_both(seen):
    same = seen["gradient"] == seen["one_process"]
    yield from parts(same, same, seen)


def the_first_rank_only(seen):
    passes = bool(seen["gradient"]) and None not in seen["gradient"]
    yield from parts(passes, passes and seen["gradient"][0] == seen["one_process"][0], seen)


def all_of_nothing(seen):
    passes = not seen["error"] and None not in seen["gradient"]
    yield from parts(passes, passes and seen["gradient"] == seen["one_process"], seen)


def a_rank_without_one_passes(seen):
    if not seen["one_process"]:
        raise CannotTell("an answer from a rank")
    passes = not seen["error"] and bool(seen["gradient"])
    yield from parts(passes, passes and seen["gradient"] == seen["one_process"], seen)


def words_of_its_own(seen):
    yield part("works", not seen["error"], seen["error"])
    yield part("right", seen["gradient"] == seen["one_process"], seen["gradient"])


def one_part(seen):
    yield part(PASSES, not seen["error"], seen["error"])


def measures_nothing(seen):
    if not seen["one_process"]:
        raise CannotTell("an answer from a rank")
    passes = bool(seen["gradient"]) and None not in seen["gradient"]
    yield part(PASSES, passes)
    yield part(EQUAL, passes and seen["gradient"] == seen["one_process"])


def gives_up(seen):
    raise CannotTell("a newer torch")


def returns_a_bool(seen):
    return not seen["error"]


JUDGES = {
    always_right: "a check that cannot fail is none",
    only_the_error: "read `error` and `gradient` apart",
    equality_for_both: "read `error` and `gradient` apart",
    the_first_rank_only: "compare every rank's gradient",
    all_of_nothing: "all() of nothing is True",
    a_rank_without_one_passes: "the gradient passes where every rank has one",
    words_of_its_own: "called by words of the sentence",
    one_part: "the sentence says two things",
    measures_nothing: "yes and no alone convince nobody",
    gives_up: "both parts hold",
    returns_a_bool: "both parts hold",
}


def neighbours(answers):
    names = list(answers)
    return [(a, b) for a, b in zip(names, names[1:], strict=False) if answers[a] != answers[b]]


def the_first_change(answers):
    known = [(v, a) for v, a in answers.items() if a in ("yes", "no")]
    return [(v, w) for (v, a), (w, b) in zip(known, known[1:], strict=False) if a != b][:1]


def the_new_version_alone(answers):
    known = [(v, a) for v, a in answers.items() if a in ("yes", "no")]
    return [w for (_, a), (w, b) in zip(known, known[1:], strict=False) if a != b]


def beginnings_only(answers):
    known = [(v, a) for v, a in answers.items() if a in ("yes", "no")]
    return [(v, w) for (v, a), (w, b) in zip(known, known[1:], strict=False) if (a, b) == ("no", "yes")]


def errors_are_no(answers):
    known = [(v, a == "yes") for v, a in answers.items()]
    return [(v, w) for (v, a), (w, b) in zip(known, known[1:], strict=False) if a != b]


RELEASES = {
    neighbours: "an error or a cannot tell is no answer",
    the_first_change: "each change is a pair",
    the_new_version_alone: "the last version of the old answer",
    beginnings_only: "a fact can end as well as begin",
    errors_are_no: "an error or a cannot tell is no answer",
}

WRONG = {"new_torch.judge": JUDGES, "new_torch.release": RELEASES}
