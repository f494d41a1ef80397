"""Hints for the repairs of lesson 18: three for each symptom, from where to look to what to write."""

from __future__ import annotations

__all__ = ["HINTS", "hint"]

# the check that fails, of the service and then of the job, with a number where several faults fail the same one
HINTS: dict[str, tuple[str, str, str]] = {
    "ends": (
        "Read the report of the hang: which rank waits in which call, and which rank is not in that call at all.",
        "The shards wait in a collective of three ranks. Only two have a reason to call it.",
        "Give the all-reduce of `calibrate` its `group`. Without one it is a collective of the world.",
    ),
    "patient": (
        "The router ends first. Its error names the limit that it ran into.",
        "A limit has to be longer than the longest pause that is none of its business: a compile, a slow disk.",
        "Raise `timeout_s` in `Settings` to a minute. A watchdog can be faster, because it hears heartbeats.",
    ),
    "warm": (
        "Compare the two shards: what does one of them compile only after the first prompt has come?",
        "`warm_up` does not run the same code on both shards.",
        "Take the `if` out of `warm_up`. Both shards encode the prompt, so both have to compile the encoder.",
    ),
    "alike": (
        "One operator of a block's graph differs. With `def show(graph, inputs): print(graph.code); return graph`"
        " `pair.run(replay, Settings(backend=show), PROMPTS)` prints the graphs of both shards.",
        "It is the activation, and the program reads it from the file of the host.",
        "Write the same `activation` in both lines of `HOSTS`, and compare settings at start-up from now on.",
    ),
    "numbers": (
        "It fails together with `alike`: one shard computes another function. Ask for the hints of `alike`.",
        "Both shards have the right weights. One reads another setting from the file of its host.",
        "Write the same `activation` in both lines of `HOSTS`.",
    ),
    "steady 1": (
        "Read the guards that failed: which of them name a size?",
        "Prompts differ in length, and every length gets graphs of its own. Who asked for that?",
        "`dynamic=False` makes every shape static. Write `dynamic=True`.",
    ),
    "steady 2": (
        "Read the guards that failed: which of them name an attribute of a module?",
        "Dynamo compiles the value of an `int` attribute into the graph, and this one counts the frames.",
        "Make `number` of the encoder a tensor, and fill it. Its value is then read when the graph runs.",
    ),
    "whole 1": (
        "Read the reason of the breaks: which function is not traced, and why not?",
        "Somebody hid the all-reduce from Dynamo. The Dynamo of this torch can trace it.",
        "Remove the decorator of `add_up`.",
    ),
    "whole 2": (
        "One break a block is left. Read its place.",
        "Dynamo cannot trace a method of a logger, whatever the level of the log.",
        "Remove the log call from `Block.forward`, or log once a frame outside of compiled code.",
    ),
    "in place": (
        "Some all-reduces do not run in compiled code. Which function calls them, and which form do they have?",
        "Outside of a graph, a functional collective returns a tensor subclass whose operators run through Python.",
        "Let `decode` call `add_up`, which is in place where nothing is compiled.",
    ),
    "checkpoint": (
        "Read the report of the hang: which rank is in which collective, and who called it?",
        "`whole` gathers from both shards, and only one of them calls it.",
        "Let both shards call `whole`. Only the writing of a file belongs to one of them.",
    ),
    "graphs": (
        "The layers have the same code, and there is a graph for each. Read `TORCH_LOGS=recompiles` for the guard.",
        "An `int` attribute of a module is a constant of the graph, and after 8 graphs Dynamo gives up.",
        "Make `depth` a tensor: its value is then read when the graph runs.",
    ),
    "gradients 1": (
        "Print each gradient divided by the one of one process. Which factor do most of them share?",
        "The mean over the pieces is taken twice.",
        "`loss` is divided already: `loss.backward()`. AdamW hides such a factor.",
    ),
    "gradients 2": (
        "Only the norms' weights are left. Where do their gradients come from?",
        "In backward the norm's weight gets its gradient before `Enter` adds up: a partial sum.",
        "Take the norm first, and `Enter` after it; or add up the norms' gradients over the shards.",
    ),
    "clip": (
        "Print the norm that is clipped by, on both ranks.",
        "A shard's norm is that of its own parts. The ranks then scale by different factors.",
        "Sum squares of split weights over the shards, replicated ones once; then `nn.utils.clip_grads_with_norm_`.",
    ),
    "level": (
        "Profile both ranks: which operator does one of them have that the other has not?",
        "The first shard computes singular values for its log, and the other waits in its next all-reduce.",
        "Log the norm of each weight, which bounds its largest singular value; or log every 100th step.",
    ),
}


def hint(symptom: str, depth: int = 1) -> str:
    """Give a hint for a check that fails.

    Args:
        symptom: such as 'ends', or 'whole 2' for the second fault behind one check.
        depth: 1 says where to look, 2 what is wrong, 3 what to write.

    Returns:
        The hint.

    Raises:
        ValueError: there is no such symptom, or no hint of this depth.

    >>> hint("whole 1", 3)
    'Remove the decorator of `add_up`.'
    """
    if symptom not in HINTS:
        raise ValueError(f"no hints for {symptom!r}: there are some for {', '.join(HINTS)}")
    if depth not in (1, 2, 3):
        raise ValueError(f"hints are 1, 2 or 3 deep, got {depth!r}")
    return HINTS[symptom][depth - 1]
