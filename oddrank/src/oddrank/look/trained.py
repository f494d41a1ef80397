"""What the notes of all ranks say of a training: what was not trained, one batch for all, averages without need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from oddrank.counted import counted
from oddrank.look.finding import Finding
from oddrank.look.training import DREW, FSDP

__all__ = ["batches", "broken", "checked", "drawn_alike", "gradients", "synchronized"]

MOST = 4  # names that are listed
# half of the last bit, between the smallest and the largest number of one exponent
LOW = {"bfloat16": "0.2 to 0.4 %", "float16": "0.02 to 0.05 %"}


def gradients(table: pd.DataFrame) -> list[Finding]:
    """Parameters of optimizers that had no gradient, or zeros, in every recorded step on every rank that has them.

    Args:
        table: What all ranks noted, with the columns of `PARAMETERS`.
    """
    if table.empty:
        return []
    by_name = table.groupby("name", sort=False)
    every, steps = len(by_name), int(table["steps"].max())
    found = []
    none = by_name.filter(lambda rows: bool((rows["missing"] == rows["steps"]).all()))
    names = list(dict.fromkeys(none["name"]))
    if names and not none["held"].any():
        found.append(
            Finding(
                "",
                f"the optimizer steps on {len(names)} tensors that no module holds, and none of them had a gradient"
                f" in {steps} of {steps} recorded steps",
                "the model has other parameters by now than when the optimizer was made",
                "make the optimizer after fully_shard, DDP, .to() and load_state_dict(assign=True)",
            )
        )
    elif names:
        calls = next(iter(none["calls"][none["calls"] != ""]), "")
        why = f"a collective in place has no backward, and a forward calls {calls}" if calls else ""
        fix = "where they should be trained, find what cuts them off from the loss: .detach(), no_grad, a module that"
        fix += " does not run, a collective in place (torch.distributed.nn.functional has those with a gradient);"
        fix += " else leave them out of the optimizer"
        found.append(Finding("", f"{_listed(names, every)} had no gradient in {_of(steps)}", why, fix))
    zero = by_name.filter(lambda rows: bool((rows["zero"] == rows["steps"]).all()))
    if names := list(dict.fromkeys(zero["name"])):
        fix = "where they should be trained, find what multiplies by zero: a mask, a factor, a saturated activation,"
        fix += " a softmax or cross_entropy over one class"
        found.append(
            Finding("", f"the gradient of {_listed(names, every)} was zero in {_of(steps)}", "", fix)
        )
    still = by_name.filter(lambda rows: bool((rows["still"] > 0).all() and rows["held"].all()))
    rounded = still[still["dtype"].isin(LOW)]
    for those in [still] if still["name"].nunique() == every else [rounded] if len(rounded) else []:
        found.append(_unchanged(those, every))
    return found


def _unchanged(rows: pd.DataFrame, every: int) -> Finding:
    names, steps = list(dict.fromkeys(rows["name"])), int(rows["still"].min())
    said = f"{_listed(names, every)} did not change in {steps} of {steps} optimizer steps in which they were compared,"
    said += " though their gradients are not zero"
    if not rows["rate"].any():
        why = "their learning rate is 0"
        fix = "look at lr, and at the schedule: a warm-up that begins at 0 and is not stepped, or one that has ended"
    elif rows["dtype"].isin(LOW).all():
        dtype = str(rows["dtype"].iloc[0])
        why = f"they are {dtype}, and an update of less than half the last bit is lost, {LOW[dtype]} of a number"
        why += f" (learning rate {rows['rate'].max():g})"
        fix = "keep parameters in float32, and compute in the smaller dtype: torch.autocast, or MixedPrecisionPolicy of"
        fix += " fully_shard"
    else:
        why, fix = "", "find what puts the old values back, or makes the optimizer skip its step"
    return Finding("", said, why, fix)


def _of(steps: int) -> str:
    return f"{steps} of {steps} recorded optimizer steps"


def _listed(names: Sequence[str], every: int) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{len(names)} of {every} parameters ({', '.join(names[:MOST])}{more})"


def synchronized(table: pd.DataFrame) -> list[Finding]:
    """Modules whose gradients were averaged in each of several backwards before one optimizer step.

    Args:
        table: What all ranks noted, with the columns of `AVERAGES`.
    """
    found = []
    for (how, name), rows in table[table["skipped"] == ""].groupby(["how", "name"], sort=False):
        row = rows.iloc[0]
        if not (rows["backwards"] > rows["steps"]).all() or (rows["averaged"] < rows["backwards"]).any():
            continue
        if not rows["sums"].all():  # what the backwards before left was cleared: they are for something else
            continue
        each = row.backwards / row.steps
        said = f"{how} averaged the gradients of {name} in each of {row.backwards} backwards, though {each:g} backwards"
        said += " make one optimizer.step"
        if row.bytes > 0:
            wasted = row.bytes / row.steps * (1 - 1 / each)
            said += f": {wasted / 1e6:.3g} of {row.bytes / row.steps / 1e6:.3g} MB a step are not needed"
        why, fix = "", "enter no_sync() around the forward and backward of all but the last"
        if how == FSDP:
            fix = "set_requires_gradient_sync(False) on the root module before all but the last backward; gradients"
            fix += " then stay whole on each rank, which takes memory"
        elif where := next(iter(rows["no_sync"][rows["no_sync"] != ""]), ""):
            why = f"no_sync at {where} held no forward, and DDP decides there"
        found.append(Finding("", said, why, fix))
    return found


def broken(table: pd.DataFrame) -> list[Finding]:
    """Losses that are no finite number: the first step that has one, and its rank.

    Args:
        table: What all ranks noted, with the columns of `SEEN`.
    """
    mine = table[table["ranks"] == ""]
    if mine.empty:
        return []
    first = mine[mine["step"] == mine["step"].min()]
    ranks = ", ".join(map(str, sorted(set(first["rank"]))))
    said = f"the loss is {first['fingerprint'].iloc[0]} in step {first['step'].iloc[0]} of the run on rank {ranks}"
    later = mine["step"].nunique() - 1
    said += f", and in {later} of the recorded steps after it" if later else ""
    fix = "find the first step that has it (--skip 0 records from the beginning), and its data, learning rate and dtype"
    return [Finding("", said, "", fix)]


def _groups(table: pd.DataFrame) -> Iterator[tuple[list[str], pd.DataFrame]]:
    """Ranks that average gradients with each other, and what these ranks noted."""
    for ranks, rows in table[table["ranks"] != ""].groupby("ranks", sort=False):
        named = ranks.split(",")
        yield named, rows[rows["rank"].astype(str).isin(named)]


def _of_each(rows: pd.DataFrame) -> list[list[tuple[Any, ...]]]:
    """What each rank noted, in its order, to be compared."""
    columns = ["step", "kind", "fingerprint"]
    return [list(one[columns].itertuples(index=False, name=None)) for _, one in rows.groupby("rank")]


def batches(table: pd.DataFrame) -> list[Finding]:
    """Ranks that average gradients, and computed on the same inputs with the same losses in every recorded step.

    Args:
        table: What all ranks noted, with the columns of `SEEN`.
    """
    found = []
    for named, rows in _groups(table):
        mine = rows[rows["kind"] != DREW]
        each, kinds = _of_each(mine), set(mine["kind"])
        if len(each) < len(named) or kinds != {"loss", "input"} or any(one != each[0] for one in each):
            continue
        steps = mine["step"].nunique()
        found.append(
            Finding(
                "",
                f"ranks {', '.join(named)} average their gradients, and computed the same batch: inputs and losses were"
                f" equal to the last bit in {steps} of {steps} recorded steps",
                "",
                "give each rank a part of the data of its own: DistributedSampler, another seed, or split the stream by"
                " rank",
            )
        )
    return found


def drawn_alike(table: pd.DataFrame) -> list[str]:
    """Ranks that average gradients, and drew the same random numbers for other inputs in every recorded step.

    Args:
        table: What all ranks noted, with the columns of `SEEN`.
    """
    said = []
    for named, rows in _groups(table):
        drew, given = (_of_each(rows[rows["kind"] == kind]) for kind in (DREW, "input"))
        alike = len(drew) == len(named) and all(one == drew[0] for one in drew)
        # a loader draws, too, where an epoch begins
        each_step = alike and len(drew[0]) == rows["step"].nunique() - 1 >= 2
        if each_step and any(one != given[0] for one in given):
            said.append(
                f"ranks {', '.join(named)} drew the same random numbers in each recorded step, for other inputs"
                " (dropout, noise, augmentation): seed with the rank where each is to draw its own"
            )
    return said


def checked(parameters: pd.DataFrame, averages: pd.DataFrame, seen: pd.DataFrame) -> list[str]:
    """Say what of a training was looked at, and what was not and why.

    Args:
        parameters: What all ranks noted, with the columns of `PARAMETERS`.
        averages: With those of `AVERAGES`.
        seen: With those of `SEEN`.
    """
    told = ["gradients were not looked at: no optimizer stepped after the first recorded step began"]
    if not parameters.empty:
        steps, count = int(parameters["steps"].max()), int(parameters.groupby("rank").size().max())
        changed = "whether each parameter changed" if steps > 1 else "whether they change takes two"
        told = [
            f"gradients of {counted(count, 'parameters')} in {counted(steps, 'optimizer steps')}; {changed}"
        ]
    for (how, name, skipped), rows in averages.groupby(["how", "name", "skipped"], sort=False):
        row = rows.iloc[0]
        where = f"how often {how} averages the gradients of {name}"
        often = f"{row.averaged} of {row.backwards} backwards"
        told.append(f"{where} was not looked at: {skipped}" if skipped else f"{where}: in {often}")
    if averages.empty:
        told.append("how often gradients are averaged was not looked at: no module is in DDP or fully_shard")
    for named, rows in _groups(seen):
        kinds = set(rows["kind"])
        if absent := [kind for kind in ("loss", "input") if kind not in kinds]:
            what = {"loss": "no backward of a number", "input": "no compiled call with a tensor"}[absent[0]]
            told.append(f"whether ranks {', '.join(named)} had one batch was not looked at: there was {what}")
        else:
            told.append(f"whether inputs and losses of ranks {', '.join(named)} were the same batch")
    return told
