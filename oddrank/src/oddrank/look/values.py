"""What a rank computed: losses, outputs of served models, gradients and parameters; and two runs compared."""

from __future__ import annotations

import contextlib
import io
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oddrank.files import write
from oddrank.look import replicas
from oddrank.look.callables import Made
from oddrank.look.steps import Steps
from oddrank.torch_names import hide_from_dynamo, is_fake

__all__ = ["KINDS", "Apart", "Largest", "Values", "apart", "compare", "largest", "leaves", "load"]

KINDS = ("outputs", "losses", "gradients", "parameters")  # in the order of a step
MOST = 1 << 26  # bytes of outputs that are kept
SAMPLE = 1 << 13  # numbers of a tensor of each step that are kept
_FILE = re.compile(r"values-(\d+)\.pt")
Kept = dict[str, dict[str, torch.Tensor]]  # tensors by kind and name


class Values:
    """Keeps what this rank computes, up to the last recorded step.

    Outputs are those of compiled calls, of a program that calls no backward.

    Args:
        steps: Which step it is.
        each: Whether the outputs of a training, and the gradients that parameters have after the last backward of each
            step, are kept too: at most `SAMPLE` numbers of each, evenly spread.
    """

    def __init__(self, steps: Steps, each: bool = False) -> None:
        self._steps, self._each = steps, each
        self._taken = False
        self._kept: Kept = {kind: {} for kind in KINDS}
        self._bytes = 0
        self._trains = False

    def listen(self) -> None:
        """Note losses and outputs from now on."""
        self._steps.backwards.append(self._note)
        self._steps.returned.append(self._returned)
        self._steps.keep_values = self.save

    def take(self) -> None:
        """Keep the parameters as they are now, and nothing after: losses and outputs end here."""
        if self._taken:
            return
        self._taken = True
        seen: set[int] = set()
        for _, name, _, tensor, _ in replicas.everything():
            if isinstance(tensor, nn.Parameter) and id(tensor) not in seen:
                seen.add(id(tensor))
                self._keep("parameters", name, tensor)

    def save(self, path: Path) -> None:
        """Write what was taken, once; nothing before `take`."""
        if self._taken and self._kept:
            none: Kept = {"outputs": {}} if self._trains and not self._each else {}
            told, body = {**self._kept, **none}, io.BytesIO()
            torch.save({kind: {n: t.cpu() for n, t in named.items()} for kind, named in told.items()}, body)
            write(path, body.getvalue())
            self._kept = {}

    def _note(self, losses: list[torch.Tensor]) -> Callable[[], object] | None:
        if self._taken:
            return None
        self._trains = True
        for loss in losses if self._steps.found else []:
            self._keep("losses", f"step {self._steps.found}", loss)
        return self._gradients if self._each else None

    def _gradients(self) -> None:
        for _, name, _, tensor, _ in replicas.everything():
            if tensor.is_leaf and tensor.grad is not None:
                self._keep("gradients", f"step {self._steps.found}, {name}", tensor.grad, last=True)

    def _returned(self, found: Any, of: Made) -> None:
        if self._taken or (self._trains and not self._each) or not self._steps.found:
            return
        of_call = f", {of.name} at {of.place}" if self._each else ""
        for name, tensor in leaves(found, f"step {self._steps.found}{of_call}"):
            self._bytes += tensor.nbytes if not self._each else min(tensor.nbytes, 8 * SAMPLE)
            if tensor.is_floating_point() and self._bytes <= MOST:
                self._keep("outputs", name, tensor)

    def _keep(self, kind: str, name: str, tensor: Any, last: bool = False) -> None:
        with contextlib.suppress(Exception), torch.no_grad():  # the program goes on
            local = replicas.local_part(tensor).detach()
            if not is_fake(local) and not local.is_meta and local.layout == torch.strided:
                names = (name if n == 1 else f"{name}, number {n}" for n in range(1, 1 << 20))
                name = name if last else next(one for one in names if one not in self._kept[kind])
                if self._each and local.numel() > SAMPLE:
                    local = local.reshape(-1)[:: local.numel() // SAMPLE | 1]  # odd: other columns, too
                self._kept[kind][name] = local.clone()  # the program may write to it


def leaves(found: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Find the tensors in what a call is given or returns, each with a name."""
    if isinstance(found, torch.Tensor):
        yield name, found
    elif isinstance(found, dict):
        for key, value in found.items():
            yield from leaves(value, f"{name}[{key!r}]")
    elif isinstance(found, (tuple, list)):
        for i, value in enumerate(found):
            yield from leaves(value, f"{name}[{i}]")


_HEARS = (Values._note, Values._returned, Values._gradients)
hide_from_dynamo(*(one.__code__ for one in _HEARS), calls=True)


@dataclass(frozen=True)
class Largest:
    """How far values of one kind are apart in two runs.

    Attributes:
        compared: Number of tensors of all ranks that were compared.
        equal: Whether they are equal bit by bit.
        close: Whether all numbers are within the tolerance.
        absolute: The largest difference of two numbers; infinite where one is NaN.
        relative: The largest difference, divided by the largest number of its tensor in the first run.
        where: The name and the rank of the tensor with the largest relative difference; '' where all are equal.
    """

    compared: int = 0
    equal: bool = True
    close: bool = True
    absolute: float = 0.0
    relative: float = 0.0
    where: str = ""


@dataclass(frozen=True)
class Apart:
    """How far two runs are apart.

    Attributes:
        kinds: By the names in `KINDS`, those of which something was compared.
        left: What could not be compared, in words.
    """

    kinds: dict[str, Largest]
    left: list[str]


def apart(first: Path, other: Path, tolerance: float | None = None) -> Apart:
    """Compare what the ranks of two runs computed.

    Args:
        first: The folder of a run with `Options(values=True)`.
        other: The folder of another one.
        tolerance: For numbers that count as close, relative and absolute; None for those of
            `torch.testing.assert_close` for the dtype.

    Raises:
        ValueError: A file holds no values of a rank.
    """
    mine, theirs = load(first), load(other)
    found: dict[str, Largest] = {}
    left = [f"rank {rank} has values in one run only" for rank in sorted(mine.keys() ^ theirs.keys())]
    for rank, kind in ((rank, kind) for rank in sorted(mine.keys() & theirs.keys()) for kind in KINDS):
        a, b = mine[rank][kind], theirs[rank][kind]
        alone = sorted(a.keys() ^ b.keys())
        apart = [
            name
            for name in a
            if name in b and (a[name].shape, a[name].dtype) != (b[name].shape, b[name].dtype)
        ]
        for names, what in ((alone, "in one run only"), (apart, "of another shape or dtype")):
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            left += [f"{kind} of rank {rank}, {what}: {', '.join(names[:3])}{more}"] if names else []
        for name in (name for name in a if name in b and name not in apart):
            found[kind] = _joined(
                found.get(kind, Largest()), compare(a[name], b[name], tolerance, f"{name}, rank {rank}")
            )
    if not any(values[kind] for values in mine.values() for kind in ("losses", "outputs")):
        left.append("no loss and no output: no backward was called, and compiled calls returned no tensor")
    return Apart(found, left)


def load(folder: Path) -> dict[int, Kept]:
    """Read what the ranks of a run have written, by rank.

    Raises:
        ValueError: A file holds no values of a rank.
    """
    found = {}
    for path in sorted(folder.glob("values-*.pt")):
        try:
            body = torch.load(path, map_location="cpu", weights_only=True)
            held = {kind: {str(name): tensor for name, tensor in body[kind].items()} for kind in KINDS}
            if not all(type(tensor) is torch.Tensor for named in held.values() for tensor in named.values()):
                raise TypeError("it holds something that is no tensor")
            name = _FILE.fullmatch(path.name)
            if name is not None:
                found[int(name[1])] = held
        except (
            OSError,
            RuntimeError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            EOFError,
            pickle.UnpicklingError,
        ) as e:
            raise ValueError(f"{path} holds no values of a rank: {type(e).__name__}: {e}") from None
    return found


def _joined(a: Largest, b: Largest) -> Largest:
    wider = b if b.relative > a.relative or (not b.equal and a.equal) else a
    return Largest(
        a.compared + b.compared,
        a.equal and b.equal,
        a.close and b.close,
        max(a.absolute, b.absolute),
        wider.relative,
        wider.where,
    )


def compare(a: torch.Tensor, b: torch.Tensor, tolerance: float | None = None, where: str = "") -> Largest:
    """Compare two tensors of one shape and dtype, as `apart` does."""
    bits = [one.contiguous().reshape(-1).view(torch.uint8) for one in (a, b)]
    if torch.equal(*bits) or not a.numel():
        return Largest(1)
    if a.is_floating_point() and a.element_size() == 1:  # float8 has no arithmetic
        a, b = a.float(), b.float()
    close = True
    try:
        more: dict[str, Any] = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(b, a, equal_nan=True, **more)
    except AssertionError:
        close = False
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    same = (x == y) | (x.isnan() & y.isnan())
    gap = (x - y).abs().masked_fill(same, 0.0).nan_to_num(nan=float("inf"), posinf=float("inf"))
    absolute, size = float(gap.max()), largest(x)
    relative = absolute / size if size else float("inf") if absolute else 0.0
    return Largest(1, False, close, absolute, relative, where)


def largest(tensor: torch.Tensor) -> float:
    """The largest absolute number of a tensor; 0 where it has none."""
    if not tensor.numel():
        return 0.0
    wide = tensor if tensor.is_complex() else tensor.double()
    return float(wide.abs().nan_to_num(nan=0.0, posinf=0.0).max())
