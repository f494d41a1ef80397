"""The torchrun command that runs an experiment on several machines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

PORT = 29400


def torchrun_line(
    experiment: Any,
    world_size: int,
    nodes: int,
    backend: str,
    device: str,
    save: str | None,
    options: Mapping[str, Any],
) -> str:
    """Return `torchrun ... -m labkit run NAME ...`, with ranks spread evenly over machines.

    Args:
        experiment: The experiment, or a module that has it as ABOUT.
        world_size: Number of ranks.
        nodes: Number of machines; with more than one, HOST in the line stands for the name of one of them.
        backend: The backend; shm becomes gloo on more than one machine.
        device: 'cpu' or 'cuda'.
        save: The folder for the report, or None.
        options: The options of the experiment's command line.

    Raises:
        ValueError: If `nodes` does not divide the ranks, or the experiment lacks an option.
    """
    about = getattr(experiment, "ABOUT", experiment)
    if not hasattr(about, "options"):
        raise ValueError(f"{experiment!r} is no experiment: give a module such as course.cliff.experiment")
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1 or world_size % nodes:
        raise ValueError(f"nodes must divide the {world_size} ranks, got {nodes!r}")
    if nodes > 1 and backend == "shm":
        backend = "gloo"  # shm is the memory of one machine
    takes = {option.name: option for option in about.options}
    words = ["torchrun", "--nproc-per-node", str(world_size // nodes)]
    if nodes > 1:
        words[1:1] = ["--nnodes", str(nodes)]
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"HOST:{PORT}"]
    words += ["-m", "labkit", "run", about.name, "--backend", backend, "--device", device]
    for key, value in options.items():
        if key not in takes:
            offered = ", ".join(f"--{own}" for own in takes) or "no option"
            raise ValueError(f"{about.name} has no --{key} on the command line: it takes {offered}")
        if takes[key].kind is bool:
            words += [f"--{key}"] if value else []
        else:
            for one in value if takes[key].many else [value]:
                words += [f"--{key}", str(one)]
    words += ["--save", save] if save else []
    return shlex.join(words)
