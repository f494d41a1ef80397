"""Times steps that may run on a GPU, with what one of them allocates at the peak, and puts both into a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd
import torch

from labkit import timing

__all__ = ["step_times", "summary"]


def step_times(
    steps: Mapping[str, Callable[[], torch.Tensor]],
    rounds: int,
    barrier: Callable[[], object] | None = None,
    alone: Mapping[str, Callable[[], torch.Tensor]] | None = None,
) -> pd.DataFrame:
    """Time steps in interleaved rounds; on a GPU, also what one of them allocates at the peak, in MiB.

    Args:
        steps: by name, what returns the same tensor.
        rounds: of the timing.
        barrier: called before each step of a round.
        alone: parts of a step, timed in the same rounds, whatever they return.

    Returns:
        One row for each step and round, with the column `peak`, nan on a CPU.

    Raises:
        ValueError: a step returns other numbers than the first one.
    """

    def run(step: Callable[[], torch.Tensor]) -> torch.Tensor:
        result = step()
        if result.is_cuda:
            torch.cuda.synchronize()
        return result

    peaks = dict.fromkeys(steps, float("nan"))
    with torch.no_grad():
        right = run(next(iter(steps.values())))
        for name, step in steps.items():
            if not torch.allclose(run(step), right):  # and the libraries have their workspaces
                raise ValueError(f"{name} returns other numbers than the first step")
            if right.is_cuda:
                torch.cuda.reset_peak_memory_stats()
                run(step)
                peaks[name] = torch.cuda.max_memory_allocated() / 2**20
        timed = {name: partial(run, step) for name, step in {**steps, **(alone or {})}.items()}
        samples = timing.interleave(timed, rounds=rounds, warmup=3, barrier=barrier).frame
    return samples.assign(peak=samples["variant"].map(peaks))


def summary(samples: pd.DataFrame) -> pd.DataFrame:
    """The step of each way by its slowest rank, in ms, and its peak; both also in % above those of the first way."""
    slowest = samples.groupby(["variant", "round"], sort=False)[["seconds", "peak"]].max()
    ways = slowest.assign(ms=slowest["seconds"] * 1e3).groupby("variant", sort=False)
    step, peak = ways["ms"].median(), ways["peak"].max()
    table = pd.DataFrame(
        {"step": step, "p10": ways["ms"].quantile(0.1), "p90": ways["ms"].quantile(0.9), "peak": peak}
    )
    table["overhead_percent"] = 100 * (step / step.iloc[0] - 1)
    table["peak_percent"] = 100 * (peak / peak.iloc[0] - 1)
    return table.round(2).dropna(axis="columns").rename_axis("way").reset_index()
