"""What lesson 12 does around each start: the same model, a cache folder of its own, and what came of a saved result."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit.ranks.output import quiet_stderr
from labkit.torch_compat import dynamo_reset

__all__ = ["WIDTH", "batch", "leave", "made", "own_caches", "outcome"]

WIDTH = 32


def made(kind: Any, *sizes: int) -> Any:
    """A model with the same weights on every rank and in every process."""
    setattr(sys.modules[kind.__module__], kind.__name__, kind)  # a pickle asks the module for the class
    torch.manual_seed(0)
    return kind(*sizes)


def batch(rows: int = 4) -> Any:
    """An input, (rows, WIDTH), the same on every rank."""
    return torch.linspace(-1, 1, rows * WIDTH).reshape(rows, WIDTH)


def own_caches(place: Path, filled_from: str = "") -> Path:
    """Give this process a cache folder of its own, with what another folder holds, before its first compile."""
    folder = place / f"rank-{dist.get_rank()}"
    shutil.rmtree(folder, ignore_errors=True)
    if filled_from:
        shutil.copytree(place / filled_from, folder)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ["TMPDIR"] = str(place)  # a package is unpacked there
    return folder


def leave(kind: Any, place: Path, *saves: Callable[[Any, Any, Path], None]) -> None:
    """On each rank: compile a model, and then save it in a way of its own.

    Rank 0's cache folder and its cache artifacts are kept as `caches` and `artifacts`.

    Args:
        kind: the class of the model.
        place: where all is kept.
        saves: by rank, the way: a function of the model, its input and the place.
    """
    own_caches(place)
    with torch.no_grad(), quiet_stderr():
        torch.compile(made(kind))(batch()) + 0  # on every rank: a model may have collectives
        if not dist.get_rank():
            saved = torch.compiler.save_cache_artifacts()
            assert saved, "nothing was compiled, or no cache was written"
            (place / "artifacts").write_bytes(saved[0])
            shutil.copytree(os.environ["TORCHINDUCTOR_CACHE_DIR"], place / "caches")
        dynamo_reset()
        saves[dist.get_rank()](made(kind), batch(), place)


def outcome(call: Callable[[], Any], expected: Any) -> tuple[str, str]:
    """What comes of a call: 'right', 'wrong' or 'refused', and the text of the error."""
    try:
        with quiet_stderr():  # a package warns of an output that it resizes
            y = call()
    except Exception as error:
        return "refused", f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return "right" if y.shape == expected.shape and torch.allclose(y, expected, atol=1e-5) else "wrong", ""
