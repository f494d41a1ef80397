"""The c10d process group of `shm`: every method that torch calls, from Python and from C++."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from labkit import torch_compat
from labkit.shm.board import JOINING, Board
from labkit.shm.calls import Call, call, reducer, reduction
from labkit.shm.errors import Mismatch
from labkit.shm.segment import share, slots
from labkit.shm.tensors import FakeTensorGiven, Outputs, cut, flat

profiling = torch_compat.profiling_flag()
Tensors = Sequence[Tensor]
Some = Tensor | Tensors
Take = Callable[[list[Tensor], int, int], None]
BARRIER = Call("barrier()")


class Done(dist.Work):
    """c10d's handle of a collective, which here has always ended; `get_future()` holds its tensors."""

    def __init__(self, tensors: list[Tensor]):
        super().__init__()
        self._tensors = tensors
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

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


def _as_list(some: Some) -> Tensors:
    """Return the tensors of a call, which is for one tensor or, coalesced, for several."""
    return [some] if isinstance(some, Tensor) else some


def _expect(op: str, tensors: Tensors, count: int, numel: int, dtype: torch.dtype) -> None:
    """Raise ValueError, before any peer is involved, unless there are so many tensors of such a size and dtype."""
    got = [(t.numel(), t.dtype) for t in tensors]
    if got != [(numel, dtype)] * count:
        said = ", ".join(f"{has} of {of}" for has, of in got)
        raise ValueError(f"{op} over shm takes {count} x {numel} elements of {dtype} here, got {said}")


def _common(low: int, high: int, start: int, stop: int) -> tuple[slice, slice]:
    """Return what a piece and a section of one row have in common: the slice of the piece, and of the section.

    >>> _common(0, 10, 8, 12), _common(10, 20, 8, 12)
    ((slice(8, 10, None), slice(0, 2, None)), (slice(0, 2, None), slice(2, 4, None)))
    """
    first = max(low, start)
    last = max(first, min(high, stop))
    return slice(first - low, last - low), slice(first - start, last - start)


def _nothing(parts: list[Tensor], low: int, high: int) -> None:
    pass


class ShmProcessGroup(dist.ProcessGroup):
    """A process group of ranks on one machine; its collectives end before they return, `async_op=True` or not.

    Point-to-point messages go over gloo, which connects two ranks when they first talk.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta):
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub lacks this overload
        self._me, self._n = rank, size
        self._timeout, self._group_name = timeout, ""
        self._over = Done([])
        self._lock = threading.Lock()  # a collective of a second thread waits for that of the first
        with share(store, rank, size, timeout) as (memory, token):
            self._board: Any = Board(memory, rank, size, timeout.total_seconds())
            self._slots: Any = slots(memory, size)
            self._exchange(JOINING, None, _nothing)
        # once more: the way to this memory is closed before a rank can leave, and look for the next group's
        self._exchange(JOINING, None, _nothing)
        self._gloo: Any = None
        self._store: Any = dist.PrefixStore(f"gloo/{token}/", store)

    def _exchange(self, call: Call, mine: Tensor | None, take: Take, opts: Any = None) -> None:
        """Run a collective: for each piece put it into the slot, meet the peers, and take what they have put.

        Every rank takes part in every turn, even if it has nothing to put or to take, because turns keep the slots
        apart. If it fails, the group refuses every later call.

        Args:
            call: The call, the same on all ranks.
            mine: A tensor of the call's shape, to be put; None for nothing.
            take: Reads what the ranks have put; called with their parts of a piece, and the piece's from and to.
            opts: c10d's options, of which the timeout is used.
        """
        board, of = self._board, self._slots
        with self._lock:
            if board.failed:
                board.check_open()
            try:
                for low, high, shape in call.pieces:
                    parts = of(call.dtype, shape)[board.next_turn()]
                    if mine is not None:
                        parts[self._me].copy_(cut(mine, low, high))
                    board.meet(call, opts)
                    take(parts, low, high)
            except Mismatch as error:
                board.fail(str(error), Mismatch)
                raise
            except BaseException as error:
                said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                board.fail(f"rank {self._me} stopped in {call.text}: {said}")
                raise

    # --- reductions ---

    def _reduce(self, op: str, tensor: Tensor, root: int | None, opts: Any) -> None:
        name = reduction(opts)
        into = reducer(name, tensor.dtype, self._n)
        with Outputs([tensor], shaped=True) as (row,):

            def take(parts: list[Tensor], low: int, high: int) -> None:
                into(parts, cut(row, low, high))

            how = name if root is None else f"{name}, root {root}"
            takes = root is None or root == self._me
            self._exchange(call(op, how, row.dtype, row.shape), row, take if takes else _nothing, opts)

    @collective("all_reduce")
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Done:
        for tensor in tensors:
            self._reduce("all_reduce", tensor, None, opts)
        return self._handle(tensors, opts)

    @collective("reduce")
    def reduce(self, tensors: Tensors, opts: Any) -> Done:
        for tensor in tensors:
            self._reduce("reduce", tensor, opts.rootRank, opts)
        return self._handle(tensors, opts)

    def _reduce_scatter(self, output: Tensor, whole: Tensor, opts: Any) -> None:
        name, start = reduction(opts), self._me * output.numel()
        into = reducer(name, output.dtype, self._n)
        with Outputs([output]) as (row,):

            def take(parts: list[Tensor], low: int, high: int) -> None:
                # what the piece has of this rank's part
                first, last = max(low, start), min(high, start + row.numel())
                if first < last:
                    into(
                        [part[first - low : last - low] for part in parts], row[first - start : last - start]
                    )

            self._exchange(call("reduce_scatter", name, whole.dtype, whole.shape), whole, take, opts)

    @collective("reduce_scatter")
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Done:
        for output, parts in zip(outputs, inputs, strict=True):
            _expect("reduce_scatter", parts, self._n, output.numel(), output.dtype)
            self._reduce_scatter(output, torch.cat([flat(t) for t in parts]), opts)
        return self._handle(outputs, opts)

    @collective("reduce_scatter_tensor")
    def reduce_scatter_single(self, output: Some, input: Some, opts: Any = None) -> Done:
        outputs, inputs = _as_list(output), _as_list(input)
        for out, whole in zip(outputs, inputs, strict=True):
            _expect("reduce_scatter_tensor", [whole], 1, out.numel() * self._n, out.dtype)
            self._reduce_scatter(out, flat(whole), opts)
        return self._handle(outputs, opts)

    # --- copies ---

    def _broadcast(self, op: str, tensor: Tensor, root: int, opts: Any) -> None:
        with Outputs([tensor], shaped=True) as (row,):

            def take(parts: list[Tensor], low: int, high: int) -> None:
                cut(row, low, high).copy_(parts[root])

            mine, to_do = (row, _nothing) if root == self._me else (None, take)
            self._exchange(call(op, f"root {root}", row.dtype, row.shape), mine, to_do, opts)

    @collective("broadcast")
    def broadcast(self, tensors: Tensors, opts: Any) -> Done:
        for tensor in tensors:
            self._broadcast("broadcast", tensor, opts.rootRank, opts)
        return self._handle(tensors, opts)

    @collective("scatter")
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Done:
        root = opts.rootRank
        for i, output in enumerate(outputs):
            numel = output.numel()
            if root == self._me:
                _expect("scatter", inputs[i], self._n, numel, output.dtype)
            with Outputs([output]) as (row,):
                whole = torch.cat([flat(t) for t in inputs[i]]) if root == self._me else row.repeat(self._n)
                self._broadcast("scatter", whole, root, opts)
                row.copy_(whole[self._me * numel :][:numel])
        return self._handle(outputs, opts)

    def _gather(self, op: str, how: str, rows: Tensors, tensor: Tensor, opts: Any) -> None:
        mine = flat(tensor)

        def take(parts: list[Tensor], low: int, high: int) -> None:
            for row, part in zip(rows, parts, strict=False):  # only the root of a gather has rows
                cut(row, low, high).copy_(part)

        self._exchange(call(op, how, mine.dtype, mine.shape), mine, take, opts)

    @collective("all_gather")
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Done:
        for parts, tensor in zip(outputs, inputs, strict=True):
            _expect("all_gather", parts, self._n, tensor.numel(), tensor.dtype)
            with Outputs(parts) as rows:
                self._gather("all_gather", "", rows, tensor, opts)
        return self._handle([t for parts in outputs for t in parts], opts)

    @collective("all_gather_into_tensor")
    def all_gather_single(self, output: Some, input: Some, opts: Any = None) -> Done:
        outputs, inputs = _as_list(output), _as_list(input)
        for whole, tensor in zip(outputs, inputs, strict=True):
            _expect("all_gather_into_tensor", [whole], 1, tensor.numel() * self._n, tensor.dtype)
            with Outputs([whole]) as (row,):
                self._gather("all_gather", "", row.chunk(self._n), tensor, opts)
        return self._handle(outputs, opts)

    @collective("gather")
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Done:
        for i, tensor in enumerate(inputs):
            parts: Tensors = []
            if opts.rootRank == self._me:
                parts = outputs[i]
                _expect("gather", parts, self._n, tensor.numel(), tensor.dtype)
            with Outputs(parts) as rows:
                self._gather("gather", f"root {opts.rootRank}", rows, tensor, opts)
        return self._handle([t for parts in outputs for t in parts], opts)

    @collective("all_to_all")
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done:
        if not len(inputs) == len(outputs) == self._n:
            raise ValueError(f"all_to_all takes one input and one output for each of {self._n} ranks")
        counts = [t.numel() for t in (*inputs, *outputs)]
        with Outputs(outputs) as rows:
            mine = torch.cat([flat(t) for t in inputs])
            self._all_to_all(rows, mine, self._agree(counts, opts), opts)
        return self._handle(outputs, opts)

    @collective("all_to_all_single")
    def all_to_all_single(
        self, output: Tensor, input: Tensor, taken: Sequence[int], given: Sequence[int], opts: Any = None
    ) -> Done:
        sent, received = self._counts(input, given), self._counts(output, taken)
        if equal := not taken and not given:
            _expect("all_to_all_single", [output], 1, input.numel(), input.dtype)
        with Outputs([output]) as (row,):
            mine = flat(input)
            tables = [sent] * self._n if equal else self._agree(sent + received, opts)
            self._all_to_all(row.split(received), mine, tables, opts)
        return self._handle([output], opts)

    def _counts(self, tensor: Tensor, sizes: Sequence[int]) -> list[int]:
        """Return how many elements of a tensor belong to each rank, from numbers of rows; from none it is shared."""
        n, rows = self._n, len(tensor)
        sizes = sizes or [rows // n] * n
        if len(sizes) != n or sum(sizes) != rows:
            raise ValueError(f"all_to_all_single cannot split {rows} rows for {n} ranks into {list(sizes)}")
        return [size * tensor[:1].numel() for size in sizes]

    def _agree(self, counts: list[int], opts: Any) -> list[list[int]]:
        """Return how many elements each rank sends to each, and then expects of each; all raise if they disagree."""
        n = self._n
        every = torch.empty(n, 2 * n, dtype=torch.int64)
        self._gather("all_to_all", "counts", list(every), torch.tensor(counts), opts)
        tables = every.tolist()
        for source in range(n):
            for target in range(n):
                sent, expected = tables[source][target], tables[target][n + source]
                if sent != expected:
                    raise Mismatch(
                        f"ranks disagree in all_to_all: rank {source} sends {sent} elements to rank {target}, "
                        f"which expects {expected}"
                    )
        return tables

    def _all_to_all(self, rows: Tensors, mine: Tensor, tables: list[list[int]], opts: Any) -> None:
        starts = [sum(table[: self._me]) for table in tables]
        most = max(sum(table[: self._n]) for table in tables)
        if len(mine) < most:  # what ranks put is of one length
            mine = torch.cat([mine, mine.new_empty(most - len(mine))])

        def take(parts: list[Tensor], low: int, high: int) -> None:
            for row, part, start in zip(rows, parts, starts, strict=True):
                here, there = _common(low, high, start, start + len(row))
                row[there].copy_(part[here])

        self._exchange(call("all_to_all", "", mine.dtype, mine.shape), mine, take, opts)

    @collective("barrier")
    def barrier(self, opts: Any = None) -> Done:
        self._exchange(BARRIER, None, _nothing, opts)
        return self._handle([], opts)

    # --- the same for lists of tensors, and what these were called before torch 2.13, which asks for both names ---

    allreduce_coalesced = allreduce
    all_gather_single_coalesced = all_gather_single
    reduce_scatter_single_coalesced = reduce_scatter_single

    _allgather_base = allgather_into_tensor_coalesced = all_gather_single
    _reduce_scatter_base = reduce_scatter_tensor_coalesced = reduce_scatter_single
    alltoall_base = all_to_all_single

    # --- point to point: gloo ---

    def _p2p(self) -> Any:
        if self._gloo is None:
            self._board.check_open()
            self._gloo = torch_compat.local_gloo(self._store, self._me, self._n, self._timeout)
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

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a collective waits for its peers."""
        self._timeout, self._board.timeout = timeout, timeout.total_seconds()

    def abort(self) -> None:
        """Make every rank that waits in this group raise; another thread may call it."""
        self._board.fail(f"rank {self._me} aborted it")

    def shutdown(self) -> None:
        """Leave the group and let its memory go, which is freed when the last rank has done so."""
        with self._lock:
            self._board.close()
            self._slots = self._gloo = self._store = None

    def getBackendName(self) -> str:
        return "shm"

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    group_name = property(getGroupName)
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
