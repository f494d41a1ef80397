"""The c10d process group of `shm`: every method that torch calls, from Python and from C++, and its collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from labkit import torch_compat
from labkit.shm import collectives
from labkit.shm.link import join
from labkit.shm.operations import reduction_of
from labkit.shm.tensors import FakeTensorGiven, Outputs, flat, split

profiling = torch_compat.profiling_flag()
Tensors = Sequence[Tensor]


class Done(dist.Work):
    """c10d's handle of a collective, which here has always ended; `get_future()` holds its tensors."""

    def __init__(self, tensors: list[torch.Tensor]):
        super().__init__()
        self._tensors = tensors
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Future[Any]:
        if self._future is None:
            self._future = Future()
            self._future.set_result(self._tensors)
        return self._future


def collective(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a collective: the profiler shows it as `shm:name`, and fake tensors skip it."""
    shown = f"shm:{name}"

    def decorate(run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def entry(self: ShmProcessGroup, *args: Any, **kwargs: Any) -> Any:
            try:
                if profiling():
                    with torch_compat.profiler_mark(shown):
                        return run(self, *args, **kwargs)
                return run(self, *args, **kwargs)
            except FakeTensorGiven:
                return self._over

        return entry

    return decorate


class ShmProcessGroup(dist.ProcessGroup):
    """A process group of ranks on one machine; its collectives end before they return, `async_op=True` or not.

    Point-to-point messages go over gloo, which connects two ranks when they first talk.

    Args:
        store: The rendezvous store.
        rank: This rank.
        size: Number of ranks.
        timeout: How long a collective waits for its peers.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta):
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub lacks this overload
        self._link, token = join(store, rank, size, timeout.total_seconds())
        self._timeout, self._group_name, self._group_desc = timeout, "", ""
        self._over = Done([])
        self._gloo: Any = None
        self._store: Any = dist.PrefixStore(f"gloo/{token}/", store)

    # --- reductions ---

    @collective("all_reduce")
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Done:
        reduction = reduction_of(opts)
        for tensor in tensors:
            data = tensor.data
            reduced = False
            if type(data) is Tensor and data.is_cpu and data.is_contiguous():
                if data.is_inference():  # only inference mode may write into it
                    with torch.inference_mode():
                        reduced = self._link.all_reduce(data, reduction, opts)
                else:
                    reduced = self._link.all_reduce(data, reduction, opts)
            if not reduced:
                with Outputs([tensor], keep=True) as out:
                    collectives.reduce(self._link, out[0], reduction, None, opts)
        return self._handle(tensors, opts)

    allreduce_coalesced = allreduce

    @collective("reduce")
    def reduce(self, tensors: Tensors, opts: Any) -> Done:
        for tensor in tensors:
            with Outputs([tensor], keep=True) as out:
                collectives.reduce(self._link, out[0], reduction_of(opts), opts.rootRank, opts)
        return self._handle(tensors, opts)

    @collective("reduce_scatter")
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Done:
        reduction = reduction_of(opts)
        for output, parts in zip(outputs, inputs, strict=True):
            self._expect("reduce_scatter", "input", parts, output)
            with Outputs([output]) as out:
                collectives.reduce_scatter(self._link, out[0], [flat(t) for t in parts], reduction, opts)
        return self._handle(outputs, opts)

    @collective("reduce_scatter_tensor")
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Done:
        return self._reduce_scatter_tensors([output], [input], opts)

    @collective("reduce_scatter_tensor_coalesced")
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done:
        return self._reduce_scatter_tensors(outputs, inputs, opts)

    def _reduce_scatter_tensors(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Done:
        for output, whole in zip(outputs, inputs, strict=True):
            self._expect_times("reduce_scatter_tensor", "input", whole, output)
            with Outputs([output]) as out:
                parts = self._parts(flat(whole))
                collectives.reduce_scatter(self._link, out[0], parts, reduction_of(opts), opts)
        return self._handle(outputs, opts)

    # --- copies ---

    @collective("broadcast")
    def broadcast(self, tensors: Tensors, opts: Any) -> Done:
        for tensor in tensors:
            with Outputs([tensor], keep=True) as out:
                collectives.broadcast(self._link, out[0], opts.rootRank, opts)
        return self._handle(tensors, opts)

    @collective("all_gather")
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Done:
        for parts, tensor in zip(outputs, inputs, strict=True):
            self._all_gather_one(parts, tensor, opts)
        return self._handle([t for parts in outputs for t in parts], opts)

    @collective("all_gather_coalesced")
    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Done:
        for i, tensor in enumerate(inputs):  # outputs are listed by rank, then by tensor
            self._all_gather_one([parts[i] for parts in outputs], tensor, opts)
        return self._handle([t for parts in outputs for t in parts], opts)

    def _all_gather_one(self, parts: Tensors, tensor: Tensor, opts: Any) -> None:
        self._expect("all_gather", "output", parts, tensor)
        with Outputs(parts) as out:
            collectives.gather(self._link, out, flat(tensor), None, opts)

    @collective("all_gather_into_tensor")
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Done:
        return self._all_gather_tensors([output], [input], opts)

    @collective("all_gather_into_tensor_coalesced")
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done:
        return self._all_gather_tensors(outputs, inputs, opts)

    def _all_gather_tensors(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Done:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._expect_times("all_gather_into_tensor", "output", output, tensor)
            with Outputs([output]) as out:
                collectives.gather(self._link, self._parts(out[0]), flat(tensor), None, opts)
        return self._handle(outputs, opts)

    @collective("gather")
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Done:
        root = opts.rootRank == self._link.rank
        for i, tensor in enumerate(inputs):
            parts = outputs[i] if root else []
            if root:
                self._expect("gather", "output", parts, tensor)
            with Outputs(parts) as out:
                collectives.gather(self._link, out, flat(tensor), opts.rootRank, opts)
        return self._handle([t for parts in outputs for t in parts], opts)

    @collective("scatter")
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Done:
        root = opts.rootRank == self._link.rank
        for i, output in enumerate(outputs):
            parts = inputs[i] if root else []
            if root:
                self._expect("scatter", "input", parts, output)
            with Outputs([output]) as out:
                collectives.scatter(self._link, out[0], [flat(t) for t in parts], opts.rootRank, opts)
        return self._handle(outputs, opts)

    @collective("all_to_all")
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done:
        self._expect("all_to_all", "output", outputs)
        self._expect("all_to_all", "input", inputs)
        dtype = inputs[0].dtype
        for tensor in (*inputs, *outputs):
            if tensor.dtype != dtype:
                raise ValueError(f"all_to_all moves tensors of one dtype, got {dtype} and {tensor.dtype}")
        with Outputs(outputs) as out:
            collectives.all_to_all(self._link, out, [flat(t) for t in inputs], dtype, opts)
        return self._handle(outputs, opts)

    @collective("all_to_all_single")
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Done:
        if output.dtype != input.dtype:
            raise ValueError(f"all_to_all_single moves one dtype, got {input.dtype} and {output.dtype}")
        with Outputs([output]) as out:
            received = split("output", out[0], output.shape, output_sizes, self._link.size)
            sent = split("input", flat(input), input.shape, input_sizes, self._link.size)
            collectives.all_to_all(self._link, received, sent, input.dtype, opts)
        return self._handle([output], opts)

    @collective("barrier")
    def barrier(self, opts: Any = None) -> Done:
        collectives.barrier(self._link, opts)
        return self._handle([], opts)

    # --- what these were called before torch 2.13, in which both names are asked for ---

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # --- point to point: gloo ---

    def _p2p(self) -> Any:
        if self._gloo is None:
            self._link.check_open()
            self._gloo = torch_compat.local_gloo(self._store, self._link.rank, self._link.size, self._timeout)
        return self._gloo

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Any:
        return self._p2p().send(list(tensors), dst, tag)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Any:
        return self._p2p().recv(list(tensors), src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        return self._p2p().recv_anysource(list(tensors), tag)

    # --- what c10d asks of a group ---

    def _handle(self, tensors: Tensors, opts: Any) -> Done:
        # nobody looks at the handle of a call that waits: one for all of them
        return self._over if opts is not None and not opts.asyncOp else Done(list(tensors))

    def _parts(self, whole: Tensor) -> Sequence[Tensor]:
        return whole.chunk(self._link.size) if whole.numel() else [whole] * self._link.size

    def _expect(self, op: str, what: str, parts: Tensors, like: Tensor | None = None) -> None:
        """Raise ValueError, before any peer is involved, unless there is a part for each rank, each like `like`."""
        if len(parts) != self._link.size:
            raise ValueError(f"{op} takes one {what} for each of {self._link.size} ranks, got {len(parts)}")
        for i, part in enumerate(parts):
            if like is not None and (part.numel() != like.numel() or part.dtype != like.dtype):
                raise ValueError(
                    f"{op} over shm moves parts of one size: {what} {i} holds {part.numel()} elements of {part.dtype}, "
                    f"it must hold {like.numel()} of {like.dtype}"
                )

    def _expect_times(self, op: str, what: str, whole: Tensor, part: Tensor) -> None:
        if whole.dtype != part.dtype:
            raise ValueError(f"{op} moves tensors of one dtype, got {whole.dtype} and {part.dtype}")
        if whole.numel() != part.numel() * self._link.size:
            raise ValueError(
                f"{op}: the {what} must hold {self._link.size} x {part.numel()} elements, got {whole.numel()}"
            )

    def where(self) -> str:
        """Describe what this rank waits for right now, '' if it does not wait; another thread may ask."""
        return self._link.board.where()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a collective waits for its peers."""
        self._timeout, self._link.board.timeout = timeout, timeout.total_seconds()

    def abort(self) -> None:
        """Make every rank that waits in this group raise; another thread may call it."""
        self._link.board.fail(f"rank {self._link.rank} aborted it")

    def shutdown(self) -> None:
        """Leave the group and let its memory go."""
        self._link.close()
        self._gloo = self._store = None

    def getBackendName(self) -> str:
        return "shm"

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, desc: str) -> None:
        self._group_desc = desc

    def getGroupDesc(self) -> str:
        return self._group_desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    supports_splitting = supports_coalescing = False

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ShmProcessGroup:  # type: ignore[override]
        return self

    def _start_coalescing(self, device: torch.device) -> None:
        pass

    def _end_coalescing(self, device: torch.device) -> Done:
        return self._over
