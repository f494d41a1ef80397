"""What the recorded steps trained: parameters without gradient or change, gradients averaged too often, one batch."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from oddrank.live import introspect
from oddrank.live.introspect import Collective
from oddrank.look import replicas
from oddrank.look.steps import Steps
from oddrank.look.unchanged import TYPES as UNCHANGED
from oddrank.look.unchanged import Unchanged
from oddrank.look.values import leaves
from oddrank.torch_names import hide_from_dynamo

__all__ = ["AVERAGES", "DREW", "FSDP", "PARAMETERS", "SEEN", "Training"]

# of each parameter of an optimizer: its steps since the record began, in how many it had no gradient, and in how many
# of the first ones zeros
PARAMETERS = {"rank": "int64", "name": "str", "held": "bool", "steps": "int64", "missing": "int64"}
PARAMETERS |= {"zero": "int64", **UNCHANGED, "calls": "str"}
# of each module whose gradients ranks average: backwards, and those in which they were averaged
AVERAGES = {"rank": "int64", "how": "str", "name": "str", "steps": "int64", "backwards": "int64"}
AVERAGES |= {"averaged": "int64", "bytes": "int64", "no_sync": "str", "sums": "bool", "skipped": "str"}
# what ranks that average gradients computed on, and what came of it: fingerprints of a recorded step; without `ranks`,
# a loss of this rank that is no finite number
SEEN = {"rank": "int64", "ranks": "str", "step": "int64", "kind": "str", "fingerprint": "str"}
MOST = 4  # calls that are listed
FSDP = "fully_shard"
DREW = "random"


class Training:
    """Notes gradients, backwards, losses and inputs of the recorded steps. Only what they have already is read.

    Args:
        steps: Which step it is.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._parameters: dict[int, tuple[torch.Tensor, list[int]]] = {}
        self._unchanged = Unchanged()
        # recorded ones: the turn, which an optimizer's step ends, the number in it, and when each began and ended
        self._backwards: list[tuple[int, int, int, int]] = []
        self._turn = self._in_turn = 0  # of the last backward, recorded or not
        self._ended_turns: set[int] = set()
        self._optimizers: set[int] = set()
        # of later backwards of a turn: whether gradients of the ones before were kept
        self._sums: list[bool] = []
        self._given_in = 0  # the step whose first compiled call was seen
        self._seen: list[tuple[int, str, str]] = []
        self._broken: list[tuple[str, int, str, str]] = []
        self._stepped: list[int] = []  # when each optimizer step ended
        self._drawn = ""  # the state of the random generators at the end of the last step

    def listen(self) -> None:
        """Note them from now on."""
        self._steps.backwards.append(self._backward)
        self._steps.given.append(self._given)
        self._steps.optimized.append(self._trained)

    def _backward(self, losses: list[torch.Tensor]) -> Callable[[], object] | None:
        turn, before = self._steps.updates, self._in_turn if self._turn == self._steps.updates else 0
        self._turn, self._in_turn = turn, before + 1
        if not self._steps.recording:
            return None
        for loss in losses:
            self._see("loss", [loss])
            with contextlib.suppress(Exception):
                if not math.isfinite(value := float(replicas.local_part(loss).detach())):
                    self._broken.append(("", self._steps.found, "loss", str(value)))
        if self._parameters and before:
            self._sums.append(any(p.grad is not None for p, _ in self._parameters.values()))
        return functools.partial(self._ended, turn, before, time.time_ns())

    def _ended(self, turn: int, before: int, began: int) -> None:
        self._backwards.append((turn, before, began, time.time_ns()))

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note what a compiled call is given; of activations those that the first one of a step is given."""
        if not self._steps.recording:
            return
        first, self._given_in = self._given_in != self._steps.found, self._steps.found
        given = [one for _, one in leaves([*args, *kwargs.values()], "")]
        self._see("input", [one for one in given if first or not one.requires_grad])

    def _see(self, kind: str, tensors: Sequence[torch.Tensor]) -> None:
        with contextlib.suppress(Exception):  # the program goes on
            local = [replicas.local_part(one).detach() for one in tensors]
            prints = [replicas.fingerprint(one) for one in local if replicas.readable(one) and one.numel()]
            if prints:
                self._seen.append((self._steps.found, kind, " ".join(prints)))

    def _trained(self, optimizer: Any) -> Callable[[], None] | None:
        """Note the gradients that an optimizer has; what is returned notes them after its step."""
        if self._steps.rec is None:
            return None
        self._optimizers.add(id(optimizer))
        self._ended_turns.add(self._steps.updates - 1)
        every = [
            p for group in optimizer.param_groups for p in group["params"] if isinstance(p, torch.Tensor)
        ]
        before = {id(p) for p in every if p.grad is not None}
        return functools.partial(self._after, every, before, self._unchanged.before(optimizer))

    def _after(
        self, every: Sequence[torch.Tensor], before: set[int], compare: Callable[[], None] = lambda: None
    ) -> None:
        compare()
        self._stepped.append(time.time_ns())
        self._note_draws()
        with contextlib.suppress(Exception), torch.no_grad():
            known = [self._parameters.setdefault(id(p), (p, [0, 0, 0])) for p in every]
            # one that was not zero once is asked no more: that takes an operator for each, and all of its memory
            zero = _zeros([p for p, (steps, _, zeros) in known if zeros == steps and p.grad is not None])
            for p, counts in known:
                counts[0] += 1
                counts[1] += p.grad is None and id(p) not in before
                counts[2] += id(p) in zero

    def _note_draws(self) -> None:
        """Note the random generators where they have moved since the step before."""
        with contextlib.suppress(Exception):
            states = [torch.get_rng_state()]
            if torch.cuda.is_initialized():
                states.append(torch.cuda.get_rng_state())
            before, self._drawn = (
                self._drawn,
                " ".join(str(zlib.crc32(one.numpy().data)) for one in states),
            )
            if before and before != self._drawn:
                self._seen.append((self._steps.found, DREW, self._drawn))

    # --- the tables ---

    def tables(
        self, rank: int, since_ns: int, entered: Mapping[int, tuple[int, str]]
    ) -> dict[str, pd.DataFrame]:
        """Make the tables `parameters`, `averages` and `seen`, with the columns of `PARAMETERS`, `AVERAGES` and `SEEN`.

        Args:
            rank: This process.
            since_ns: The `time.time_ns()` when the first recorded step began.
            entered: When and where the program entered `no_sync` last, by the id of a DDP module.
        """
        found, known = list(_averaging()), introspect.collectives() or []
        groups = dict.fromkeys(_named(one.ranks) for one in found if len(one.ranks) > 1)
        rows: dict[str, tuple[dict[str, str], Iterable[tuple[Any, ...]]]] = {
            "parameters": (PARAMETERS, self._of_parameters(self._in_forward(found, known, since_ns))),
            "averages": (AVERAGES, self._averages(found, known, since_ns, entered)),
            "seen": (SEEN, [*self._broken, *((ranks, *one) for ranks in groups for one in self._seen)]),
        }
        return {
            name: pd.DataFrame([(rank, *row) for row in made], columns=list(types)).astype(types)
            for name, (types, made) in rows.items()
        }

    def _of_parameters(self, calls: str) -> Iterator[tuple[Any, ...]]:
        names = {id(tensor): name for _, name, _, tensor, _ in replicas.everything()}
        for p, counts in self._parameters.values():
            yield (
                names.get(id(p), str(tuple(p.shape))),
                id(p) in names,
                *counts,
                *self._unchanged.of(p),
                calls,
            )

    def _in_forward(self, found: Sequence[_Averaged], known: Sequence[Collective], since_ns: int) -> str:
        """The in-place collectives that the program's own lines called before the first backward of a step."""
        begins = [since_ns, *self._stepped]
        forwards = [
            (at, min((began for *_, began, _ in self._backwards if began > at), default=0)) for at in begins
        ]
        gathers = {name for one in found if one.how == FSDP for name in one.groups}
        called = dict.fromkeys(
            f"dist.{call.called} at {call.place}"
            for call in known
            if call.called and call.place and call.group not in gathers
            if any(at < call.time_ns < until for at, until in forwards)
        )
        return ", ".join(list(called)[:MOST])

    def _averages(
        self,
        found: Sequence[_Averaged],
        known: Sequence[Collective],
        since_ns: int,
        entered: Mapping[int, tuple[int, str]],
    ) -> Iterator[tuple[Any, ...]]:
        """The modules whose gradients ranks average; how often, where a reduction can be of nothing else."""
        each = Counter(turn for turn, *_ in self._whole_turns())
        if why := self._why_not(found, known, each, since_ns):
            yield from ((one.how, one.name, 0, 0, 0, -1, "", False, why) for one in found)
            return
        (one,) = found
        mine = [call for call in known if call.group in one.groups and "reduce" in f"{call.op} {call.called}"]
        within = [(at, call.nbytes) for call in mine if (at := self._within(call.time_ns))]
        when, where = entered.get(one.ident, (0, ""))
        sent = sum(nbytes for _, nbytes in within) if all(nbytes >= 0 for _, nbytes in within) else -1
        counts = (len(each), sum(each.values()), len({at for at, _ in within}), sent)
        yield one.how, one.name, *counts, where if when >= since_ns else "", all(self._sums or [False]), ""

    def _why_not(
        self, found: Sequence[_Averaged], known: Sequence[Collective], each: Counter[int], since_ns: int
    ) -> str:
        """Why it cannot be told how often the gradients of a module are averaged."""
        many = {"modules": len(found), "optimizers": len(self._optimizers)}
        if several := next((name for name, count in many.items() if count > 1), ""):
            return f"there are several {several}"
        if not known or (len(known) >= introspect.kept() and known[0].time_ns >= since_ns):
            return "torch's flight recorder does not have all collectives of these steps"
        if not (found and self._optimizers and each):
            return "no backward and optimizer step were recorded"
        if len(set(each.values())) > 1:
            return "optimizer steps have different numbers of backwards"
        return "its mesh has several dimensions" if len(found[0].groups) > 1 else ""

    def _within(self, time_ns: int) -> int:
        """When the backward began that a time lies in; 0 for none."""
        return next((began for *_, began, ended in self._whole_turns() if began <= time_ns <= ended), 0)

    def _whole_turns(self) -> list[tuple[int, int, int, int]]:
        """Backwards of turns of which each backward was recorded: a step that the user names may be part of one."""
        last = {turn: number for turn, number, *_ in self._backwards}
        seen = Counter(turn for turn, *_ in self._backwards)
        return [
            one for one in self._backwards if one[0] in self._ended_turns and seen[one[0]] == last[one[0]] + 1
        ]


def _zeros(parameters: Sequence[Any]) -> set[int]:
    """The ids of parameters whose gradient is zero everywhere on this rank; each device is asked once."""
    by_device: dict[Any, list[tuple[int, torch.Tensor]]] = {}
    for p in parameters:
        grad = replicas.local_part(p.grad)
        if replicas.readable(grad) and grad.numel():
            by_device.setdefault(grad.device, []).append((id(p), torch.count_nonzero(grad)))
    return {
        ident
        for those in by_device.values()
        for (ident, _), count in zip(those, torch.stack([n for _, n in those]).tolist(), strict=True)
        if count == 0
    }


class _Averaged(NamedTuple):
    """An outermost module whose gradients are averaged."""

    how: str
    name: str
    ranks: tuple[int, ...]
    groups: set[str]
    ident: int


def _averaging() -> Iterator[_Averaged]:
    if not (dist.is_available() and dist.is_initialized()):
        return
    for root in replicas.living():
        for module in root.modules():
            if isinstance(module, DistributedDataParallel):
                name = type(getattr(module.module, "_orig_mod", module.module)).__name__
                group = module.process_group
                yield _Averaged("DDP", name, replicas.members(group), {group.group_name}, id(module))
                break
            if ranks := replicas.sharded(module):
                meshes: list[Any] = [getattr(p, "device_mesh", None) for p in module.parameters()]
                groups = {group.group_name for mesh in meshes if mesh for group in mesh.get_all_groups()}
                # `fully_shard` makes a class of its own, with the name of the module's before it
                yield _Averaged(FSDP, type(module).__name__.removeprefix("FSDP"), ranks, groups, id(module))
                break


def _named(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))


_HEARS = (Training._backward, Training._ended, Training._given, Training._trained, Training._after)
hide_from_dynamo(*(one.__code__ for one in (*_HEARS, Training._note_draws)), calls=True)
