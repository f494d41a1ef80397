"""Wrong answers to the exercise of lesson 18, and words of the hint that each gets."""

from course.repair.exercises import RIGHT


def answer(job, *given):
    return {name: (list(ranks), *rest) for name, (ranks, *rest) in RIGHT.items()} | {job: given}


def the_rank_that_waits():
    return answer("A", [0], "slow link", "bucket the all-reduces")


def buckets():
    return answer("A", [1], "work on one rank", "bucket the all-reduces")


def an_operator():
    return answer("B", [0], "work on one rank", "prepare batches before the step")


def compiled():
    return answer("B", [0], "Python on one rank", "compile the layers")


def one_of_two():
    return answer("C", [0], "work on one rank", "do it seldom, or on no rank")


def both_work():
    return answer("C", [0, 1], "work on both ranks", "compile the layers")


def buckets_on_a_link():
    return answer("C", [], "slow link", "bucket the all-reduces")


def a_mask():
    return answer("C", [True, True], "work on both ranks", "do it seldom, or on no rank")


WRONG = {
    "repair.profiles": {
        the_rank_that_waits: "the rank that waits has no fault",
        buckets: "not for bytes",
        an_operator: "in no operator, and it has the CPU time",
        compiled: "in no operator of a layer",
        a_mask: "a list of 0 and 1",
        one_of_two: "do the ranks differ in CPU time?",
        both_work: "where no rank is late",
        buckets_on_a_link: "needs the sum of the one before",
    },
}
