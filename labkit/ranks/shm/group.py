"""The c10d process group: every entry that torch calls, from Python and from C++, mapped to a collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit import torch_compat
from labkit.ranks.shm import collectives
from labkit.ranks.shm.join import join
from labkit.ranks.shm.reduction import SUM, code
from labkit.ranks.shm.tensors import FakeTensorGiven, Outputs, flat, same, split
from labkit.ranks.shm.work import Done

profiling = torch_compat.profiling_flag()
Tensors = Sequence[Tensor]


def collective(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Show a collective to the profiler as `shm:name`, and give its tensors back in a handle that has ended."""
    shown = f"shm:{name}"

    def decorate(run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def entry(self: ShmProcessGroup, *args: Any, **kwargs: Any) -> Any:
            try:
                if profiling():
                    with torch_compat.fast_range(shown):
                        return run(self, *args, **kwargs)
                return run(self, *args, **kwargs)
            except FakeTensorGiven:
                return self._over

        return entry

    return decorate


class ShmProcessGroup(dist.ProcessGroup):
    """Ranks of one machine over shared memory. Collectives end before they return, `async_op=True` or not.

    Point-to-point messages go over gloo, which two ranks connect when they first talk.
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
        reduction = SUM if opts is None else code(opts.reduceOp)
        for tensor in tensors:
            data = tensor.data
            if not (
                type(data) is Tensor
                and data.is_cpu
                and data.is_contiguous()
                and not data.is_inference()
                and self._link.all_reduce(data, reduction, opts)
            ):
                out = Outputs([tensor], keep=True)
                collectives.reduce(self._link, out.flat[0], reduction, None, opts)
                out.done()
        return self._handle(tensors, opts)

    allreduce_coalesced = allreduce

    @collective("reduce")
    def reduce(self, tensors: Tensors, opts: Any) -> Done:
        for tensor in tensors:
            out = Outputs([tensor], keep=True)
            collectives.reduce(self._link, out.flat[0], code(opts.reduceOp), opts.rootRank, opts)
            out.done()
        return self._handle(tensors, opts)

    @collective("reduce_scatter")
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Done:
        reduction = SUM if opts is None else code(opts.reduceOp)
        for output, parts in zip(outputs, inputs, strict=True):
            self._expect("reduce_scatter", "input", parts)
            same("reduce_scatter", "input", parts, output)
            out = Outputs([output])
            collectives.reduce_scatter(self._link, out.flat[0], [flat(t) for t in parts], reduction, opts)
            out.done()
        return self._handle(outputs, opts)

    @collective("reduce_scatter_tensor")
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Done:
        reduction = SUM if opts is None else code(opts.reduceOp)
        self._reduce_scatter_one(output, input, reduction, opts)
        return self._handle([output], opts)

    @collective("reduce_scatter_tensor_coalesced")
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done:
        reduction = SUM if opts is None else code(opts.reduceOp)
        for output, whole in zip(outputs, inputs, strict=True):
            self._reduce_scatter_one(output, whole, reduction, opts)
        return self._handle(outputs, opts)

    def _reduce_scatter_one(self, output: Tensor, input: Tensor, reduction: int, opts: Any) -> None:
        self._expect_times("reduce_scatter_tensor", "input", input, output)
        out = Outputs([output])
        parts = flat(input).chunk(self._link.size) if input.numel() else [flat(input)] * self._link.size
        collectives.reduce_scatter(self._link, out.flat[0], parts, reduction, opts)
        out.done()

    # --- copies ---

    @collective("broadcast")
    def broadcast(self, tensors: Tensors, opts: Any) -> Done:
        for tensor in tensors:
            out = Outputs([tensor], keep=True)
            collectives.broadcast(self._link, out.flat[0], opts.rootRank, opts)
            out.done()
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
        self._expect("all_gather", "output", parts)
        same("all_gather", "output", parts, tensor)
        out = Outputs(parts)
        collectives.gather(self._link, out.flat, flat(tensor), None, opts)
        out.done()

    @collective("all_gather_into_tensor")
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Done:
        self._all_gather_whole(output, input, opts)
        return self._handle([output], opts)

    @collective("all_gather_into_tensor_coalesced")
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._all_gather_whole(output, tensor, opts)
        return self._handle(outputs, opts)

    def _all_gather_whole(self, output: Tensor, input: Tensor, opts: Any) -> None:
        self._expect_times("all_gather_into_tensor", "output", output, input)
        out = Outputs([output])
        whole = out.flat[0]
        parts = whole.chunk(self._link.size) if whole.numel() else [whole] * self._link.size
        collectives.gather(self._link, parts, flat(input), None, opts)
        out.done()

    @collective("gather")
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Done:
        root = opts.rootRank == self._link.rank
        for i, tensor in enumerate(inputs):
            parts = outputs[i] if root else []
            if root:
                self._expect("gather", "output", parts)
                same("gather", "output", parts, tensor)
            out = Outputs(parts)
            collectives.gather(self._link, out.flat, flat(tensor), opts.rootRank, opts)
            out.done()
        return self._handle([t for parts in outputs for t in parts], opts)

    @collective("scatter")
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Done:
        root = opts.rootRank == self._link.rank
        for i, output in enumerate(outputs):
            parts = inputs[i] if root else []
            if root:
                self._expect("scatter", "input", parts)
                same("scatter", "input", parts, output)
            out = Outputs([output])
            collectives.scatter(self._link, out.flat[0], [flat(t) for t in parts], opts.rootRank, opts)
            out.done()
        return self._handle(outputs, opts)

    @collective("all_to_all")
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done:
        self._expect("all_to_all", "output", outputs)
        self._expect("all_to_all", "input", inputs)
        dtype = inputs[0].dtype
        for tensor in (*inputs, *outputs):
            if tensor.dtype != dtype:
                raise ValueError(f"all_to_all moves tensors of one dtype, got {dtype} and {tensor.dtype}")
        out = Outputs(outputs)
        collectives.all_to_all(self._link, out.flat, [flat(t) for t in inputs], dtype, opts)
        out.done()
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
        out = Outputs([output])
        received = split("output", out.flat[0], output.shape, output_sizes, self._link.size)
        sent = split("input", flat(input), input.shape, input_sizes, self._link.size)
        collectives.all_to_all(self._link, received, sent, input.dtype, opts)
        out.done()
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

    def _expect(self, op: str, what: str, parts: Tensors) -> None:
        if len(parts) != self._link.size:
            raise ValueError(f"{op} takes one {what} for each of {self._link.size} ranks, got {len(parts)}")

    def _expect_times(self, op: str, what: str, whole: Tensor, part: Tensor) -> None:
        if whole.dtype != part.dtype:
            raise ValueError(f"{op} moves tensors of one dtype, got {whole.dtype} and {part.dtype}")
        if whole.numel() != part.numel() * self._link.size:
            raise ValueError(
                f"{op}: the {what} must hold {self._link.size} x {part.numel()} elements, got {whole.numel()}"
            )

    def where(self) -> str:
        """What this rank waits for in a collective right now, in words; '' when it does not. For another thread."""
        return self._link.board.where()

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout, self._link.board.timeout = timeout, timeout.total_seconds()

    def abort(self) -> None:
        """Make every rank that waits in this group raise; callable from another thread."""
        self._link.board.fail(f"rank {self._link.rank} aborted it")

    def shutdown(self) -> None:
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
