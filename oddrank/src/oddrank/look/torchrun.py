"""Starts torchrun for `oddrank look -n`, says how the script ended, and begins the processes that it starts."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from oddrank.look.endings import Ending
    from oddrank.look.program import Program
    from oddrank.look.steps import Options
    from oddrank.look.watch import Limits

__all__ = ["FAILED", "INTERRUPTED", "LOGS", "OUTPUT", "Request", "run"]

FAILED, INTERRUPTED = 3, 130  # exit statuses
LOGS = "logs"  # the folder of the ranks' logs and traces
LATE_S = 20.0  # after the limit, for ranks that end by themselves
OUTPUT = "output"  # where torchrun keeps what the ranks print
REQUEST = "ODDRANK_LOOK_REQUEST"
APPLIED = "ODDRANK_LOOK_ENVIRONMENT"


@dataclass(frozen=True)
class Request:
    """What every rank does.

    Args:
        program: The script.
        options: Which steps to record.
        limits: When the run is ended.
        verify: Whether collectives are compared between ranks before they run.
        env: What differs in the environment of single ranks; None for a variable that is not set.
    """

    program: Program
    options: Options
    limits: Limits
    verify: bool = False
    env: Mapping[int, Mapping[str, str | None]] = field(default_factory=dict)

    def dumps(self) -> str:
        """Return it as a text, for the ranks."""
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> Request:
        """Return the request of a text."""
        from oddrank.look.conditions import Condition
        from oddrank.look.program import Program
        from oddrank.look.steps import Options
        from oddrank.look.watch import Limits
        from oddrank.look.ways import Way

        said = json.loads(text)
        program, options, condition = said["program"], said["options"], said["options"]["condition"]
        program["arguments"] = tuple(program["arguments"])
        if condition is not None:
            options["condition"] = Condition(**condition | {"caches": tuple(condition["caches"])})
        if (way := options["way"]) is not None:
            options["way"] = Way(**way | {"settings": tuple(way["settings"])})
        return Request(Program(**program), Options(**options), Limits(**said["limits"]), said["verify"])


def run(
    request: Request, world_size: int, folder: Path, env: Mapping[str, str | None] | None = None
) -> Ending:
    """Run the script on ranks of this machine, with torchrun.

    Args:
        request: The script, and what to do with it.
        world_size: Number of ranks.
        folder: Where ranks write.
        env: Environment variables of the ranks; None for one that is not set.

    Raises:
        ValueError: If the function that is a step is not there.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from oddrank.look import endings
    from oddrank.look.watch import TIMEOUT, Stop

    words = ["--standalone", "--nproc-per-node", str(world_size), "--tee", "3"]
    words += ["--log-dir", str(folder / OUTPUT), "-m", __name__, str(folder)]
    print(f"{request.program.name} on {world_size} rank{'s' * (world_size > 1)}", file=sys.stderr)
    began, codes, interrupted = time.perf_counter(), {}, False  # type: float, dict[int, int | None], bool
    # [rank 1] before each line; 10 s for a rank whose Python stands still, once another has failed
    more = {
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank ${rank}] ",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10",
    }
    more |= {REQUEST: request.dumps(), APPLIED: ""}
    too_late = threading.Event()

    def end() -> None:  # no rank's Python runs, or one would have ended the run
        too_late.set()
        os.kill(os.getpid(), signal.SIGINT)

    limit = request.limits.timeout
    late = threading.Timer((limit or 0) + LATE_S, end)
    late.daemon = True
    with _environment({**more, **(env or {})}), _signals_as_before(), _silent_logs():
        if limit is not None:
            late.start()
        try:
            torchrun.run(torchrun.parse_args(words))
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        except KeyboardInterrupt:
            interrupted = True
        except Exception as error:
            if type(error).__name__ != "SignalException":
                raise
            interrupted = True
        finally:
            late.cancel()
    seconds = time.perf_counter() - began
    _end_children(folder)
    late_stop = Stop(TIMEOUT, seconds) if too_late.is_set() else None
    outcomes, stop = endings.read(folder, world_size, codes, stop=late_stop)
    otherwise = endings.STOPPED if interrupted and not too_late.is_set() else ""
    return endings.ending(outcomes, stop, request, seconds, otherwise)


@contextlib.contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    with mock.patch.dict(os.environ):
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        yield


@contextlib.contextmanager
def _signals_as_before() -> Iterator[None]:
    """torchrun takes signals for itself, and keeps them."""
    taken = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _silent_logs() -> Iterator[None]:
    """Leave out what torchrun says of a failure: the report says it."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def _end_children(folder: Path) -> None:
    """End what the script's processes have started and left: torchrun gives each rank a process group of its own."""
    for path in folder.glob("process-*"):
        with contextlib.suppress(OSError, ValueError):
            os.killpg(int(path.read_text()), signal.SIGKILL)
        path.unlink()


def _main(folder: Path) -> int:
    """Run the script in a process that `run` has torchrun start."""
    if os.getpgrp() == os.getpid():
        (folder / f"process-{os.environ['RANK']}").write_text(str(os.getpid()))
    if not os.environ.get(APPLIED):
        _begin_again(json.loads(os.environ[REQUEST])["env"].get(os.environ["RANK"], {}))
    from oddrank.look import rank
    from oddrank.look.rendezvous import Post, launched

    _end_with_the_launcher()
    request = Request.loads(os.environ.pop(REQUEST))
    del os.environ[APPLIED]
    launch = launched()
    assert launch is not None
    return rank.run(launch, Post(launch), request, folder, str(os.getppid()))


def _begin_again(own: Mapping[str, str | None]) -> None:
    """Start this process anew with what differs in its environment: Python and torch read some of it as they start."""
    if own:
        with _environment({**own, APPLIED: "1"}):
            os.execv(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]])


def _end_with_the_launcher() -> None:
    """Let Linux end this process where the one that runs torchrun is killed."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
