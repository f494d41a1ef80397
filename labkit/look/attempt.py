"""One run of a script on ranks that labkit starts: what `labkit look` does once, and `--perturb` again and again."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.look.program import Program, run
from labkit.look.steps import Options
from labkit.ranks import RankError, Ranks
from oddrank import tlparse

__all__ = ["FAILURE", "LOGS", "STOPPED", "Ending", "attempt", "world_size"]

STOPPED = "the script was interrupted"
LOGS = "logs"  # the folder of the ranks' logs and traces
FAILURE = "failure.txt"  # why the script failed
STALL_S = 60.0
GRACE_S = 2.0  # after a failure: ranks that fail too write what they recorded first
# where a rank stands whose collective gloo has ended, and what gloo says where it raises
_IN_COLLECTIVE = ("torch/distributed/distributed_c10d.py", "torch/autograd/graph.py")
_MISMATCH = "distributed collective mismatch"


def world_size(given: argparse.Namespace) -> int:
    """How many ranks the command starts: `-n`, or two."""
    return given.n or 2


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        said: Why the script failed, with where each rank stood; '' if it did not.
        hung: Whether a limit ended it.
        diverged: Whether the comparison of collectives before they run ended it.
    """

    said: str = ""
    hung: bool = False
    diverged: bool = False


def attempt(
    given: argparse.Namespace,
    program: Program,
    options: Options,
    folder: Path,
    env: Mapping[str, str | None] | None = None,
    rank_env: Mapping[int, Mapping[str, str | None]] | None = None,
) -> Ending:
    """Run the script on ranks.

    Args:
        given: The parsed command line: n, backend, timeout, stall and verify.
        program: The script.
        options: Which steps to record.
        folder: Where ranks write.
        env: Environment variables of the ranks.
        rank_env: What differs in the environment of single ranks.

    Raises:
        ValueError: If the function that is a step is not there.
    """
    more: dict[str, Any] = {"timeout": given.timeout, "stall": given.stall or STALL_S, "verify": given.verify}
    more |= {"logs": folder / LOGS if tlparse.tool() else None, "env": env, "rank_env": rank_env}
    with Ranks(world_size(given), "auto", given.backend, quiet=True, **more) as ranks:
        print(f"{program.name} on {ranks.describe()}", file=sys.stderr)
        try:
            ranks.run(run, program, options, str(folder), grace=GRACE_S)
        except KeyboardInterrupt as stop:
            return Ending(_needed("\n".join([STOPPED, *getattr(stop, "__notes__", ())])))
        except RankError as error:
            if error.ended == "raised" and error.outcomes[0].message.startswith("--step "):
                raise ValueError(error.outcomes[0].message) from None
            said = "\n".join(filter(None, [str(error), _hint(error, ranks.backend, given.verify)]))
            apart = any(outcome.type == "Diverged" for outcome in error.outcomes)
            return Ending(_needed(said), error.hung, apart)
        return Ending()


def _needed(said: str) -> str:
    """Leave out what is said of later calls: the ranks end with this command."""
    return "\n".join(
        line for line in said.splitlines() if not line.startswith(("All ranks were replaced", "interrupted"))
    )


def _hint(error: RankError, backend: str, verified: bool) -> str:
    """What to run next where gloo has ended a rank that got a message of another size; '' for other errors.

    Such a process aborts, or its call raises, and takes along what it knew of its collectives.
    """
    aborts = [
        one for one in error.outcomes if one.kind == "dead" and one.code == -signal.SIGABRT and one.frames
    ]
    inside = any(one.frames[-1][0].startswith(_IN_COLLECTIVE) for one in aborts)
    if backend != "gloo" or verified or not (inside or _MISMATCH in str(error)):
        return ""
    return (
        "gloo ends a rank that gets data of another size: ranks were probably in different collectives. Run it with"
        " --verify, which compares each collective before it runs and names the first that differs."
    )
