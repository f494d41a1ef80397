"""Another form of the right answer to the exercise of lesson 18."""

from course.repair import exercises


def as_sets():
    return {job: (set(ranks), *rest) for job, (ranks, *rest) in exercises.RIGHT.items()}


def in_small_letters():
    return {job: (list(ranks), *map(str.lower, rest)) for job, (ranks, *rest) in exercises.RIGHT.items()}


def both_ranks_of_a_slow_link():
    return {**exercises.RIGHT, "C": ([0, 1], *exercises.RIGHT["C"][1:])}


RIGHT = {"repair.profiles": (as_sets, in_small_letters, both_ranks_of_a_slow_link)}
