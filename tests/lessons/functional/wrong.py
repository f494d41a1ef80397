"""Plausible wrong answers to the exercises of lesson 02, each with words of the hint that is meant for it."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


def group_of(name):
    return dist.distributed_c10d._resolve_process_group(name)


def real_one(x, src, group):
    y = x.clone(memory_format=torch.contiguous_format)
    dist.broadcast(y, group=group_of(group), group_src=src)
    return y


def like_x(x, src, group):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def operator(real=real_one, fake=like_x):
    """Right with what it has as defaults; the others change one thing."""
    schema = "(Tensor x, int src, str group) -> Tensor"
    made = torch.library.custom_op("reader::broadcast", real, mutates_args=(), schema=schema)
    if fake:
        made.register_fake(fake)
    return lambda x, src, group: made(x, src, group.group_name)


def no_fake_kernel():
    return operator(fake=None)


def in_plain_python():
    def broadcast(x, src, group):
        y = x.clone(memory_format=torch.contiguous_format)
        dist.broadcast(y, group=group, group_src=src)
        return y

    return broadcast


def hidden_from_dynamo():
    return torch.compiler.disable(in_plain_python())


def torchs_own():
    return lambda x, src, group: funcol.broadcast(x, src, group) + 0


def into_the_argument():
    def real(x, src, group):
        dist.broadcast(x, group=group_of(group), group_src=src)
        return x.clone()

    return operator(real)


def gives_the_argument():
    def real(x, src, group):
        return x

    return operator(real)


def drops_what_came():
    def real(x, src, group):
        dist.broadcast(x.clone(), group=group_of(group), group_src=src)
        return x.clone()

    return operator(real)


def always_from_rank_0():
    def real(x, src, group):
        return real_one(x, 0, group)

    return operator(real)


def keeps_the_strides():
    def real(x, src, group):
        y = x.clone()
        dist.broadcast(y, group=group_of(group), group_src=src)
        return y

    return operator(real, lambda x, src, group: torch.empty_like(x))


def no_fake_kernel_and_its_own_strides():
    """Two mistakes: the fake kernel matters before the strides do."""

    def real(x, src, group):
        y = x.clone()
        dist.broadcast(y, group=group_of(group), group_src=src)
        return y

    return operator(real, fake=None)


def transposed_strides():
    def fake(x, src, group):
        return torch.empty(x.shape[::-1], dtype=x.dtype, device=x.device).permute(*reversed(range(x.dim())))

    return operator(fake=fake)


def on_the_cpu():
    return operator(fake=lambda x, src, group: torch.empty(x.shape, dtype=x.dtype, device="cpu"))


def in_float32():
    def real(x, src, group):
        return real_one(x.float(), src, group).to(x.dtype)

    return operator(real)


def by_a_product():
    def real(x, src, group):
        y = (x * (dist.get_rank(group_of(group)) == src)).contiguous()
        dist.all_reduce(y, group=group_of(group))
        return y

    return operator(real)


def global_root():
    def real(x, src, group):
        y = x.clone(memory_format=torch.contiguous_format)
        dist.broadcast(y, src, group=group_of(group))
        return y

    return operator(real)


def without_a_wait():
    def real(x, src, group):
        y = x.clone(memory_format=torch.contiguous_format)
        y.work = dist.broadcast(y, group=group_of(group), group_src=src, async_op=True)
        return y

    return operator(real)


def root_returns_x():
    def real(x, src, group):
        y = real_one(x, src, group)
        return x if dist.get_rank(group_of(group)) == src else y

    return operator(real)


def declares_a_write():
    schema = "(Tensor(a!) x, int src, str group) -> Tensor"
    made = torch.library.custom_op("reader::declares", real_one, mutates_args=("x",), schema=schema)
    made.register_fake(like_x)
    return lambda x, src, group: made(x, src, group.group_name)


def always_all_ranks():
    def real(x, src, group):
        y = x.clone(memory_format=torch.contiguous_format)
        dist.broadcast(y, src)
        return y

    return operator(real)


def all_ranks_and_its_own_strides():
    """Two mistakes: the group matters before the strides do."""

    def real(x, src, group):
        y = x.clone()
        dist.broadcast(y, src)
        return y

    return operator(real, lambda x, src, group: torch.empty_like(x))


def root_0_and_its_own_strides():
    def real(x, src, group):
        y = x.clone()
        dist.broadcast(y, group=group_of(group), group_src=0)
        return y

    return operator(real, lambda x, src, group: torch.empty_like(x))


def fixed_shape():
    return operator(fake=lambda x, src, group: x.new_empty(2, 3))


def two_dimensions():
    return operator(fake=lambda x, src, group: x.new_empty(x.shape[0], x.shape[1]))


def without_dtype():
    return operator(fake=lambda x, src, group: torch.empty(x.shape))


def flat():
    def real(x, src, group):
        return real_one(x, src, group).reshape(-1).clone()

    return operator(real)


def no_function():
    operator()


def without_annotations():
    @torch.library.custom_op("reader::plain", mutates_args=())
    def plain(x, src, group):
        return real_one(x, src, group)

    return plain


def receivers_keep_their_strides():
    def real(x, src, group):
        root = dist.get_rank(group_of(group)) == src
        y = x.clone(memory_format=torch.contiguous_format) if root else torch.empty_like(x)
        dist.broadcast(y, group=group_of(group), group_src=src)
        return y

    return operator(real)


def in_float64():
    def real(x, src, group):
        wide = x if x.is_floating_point() or x.is_complex() else x.double()
        return real_one(wide, src, group).to(x.dtype)

    return operator(real)


def of_real_numbers():
    def real(x, src, group):
        return real_one(x.real.clone() if x.is_complex() else x, src, group).to(x.dtype)

    return operator(real)


def row_by_row():
    def real(x, src, group):
        rows = [real_one(row, src, group) for row in x]
        return torch.stack(rows) if rows else torch.empty_like(x)

    return operator(real)


def another_operator_on_the_root():
    other = torch.library.custom_op(
        "reader::send", real_one, mutates_args=(), schema="(Tensor x, int src, str group) -> Tensor"
    )
    other.register_fake(like_x)
    receive = operator()

    def broadcast(x, src, group):
        root = dist.get_rank(group) == src
        return other(x, src, group.group_name) if root else receive(x, src, group)

    return broadcast


def library_that_is_gone():
    library = torch.library.Library("reader_gone", "DEF")
    library.define("broadcast(Tensor x, int src, str group) -> Tensor")
    library.impl("broadcast", real_one, "CompositeExplicitAutograd")
    torch.library.register_fake("reader_gone::broadcast", like_x, lib=library)
    return lambda x, src, group: torch.ops.reader_gone.broadcast(x, src, group.group_name)


DIAGNOSIS = {"A": ([0], "wait", "wait_tensor"), "B": ([0, 1], "schema", "mutates_args")}


def both_ranks_in_a():
    return DIAGNOSIS | {"A": ([0, 1], "wait", "wait_tensor")}


def the_other_rank_in_a():
    return DIAGNOSIS | {"A": ([1], "wait", "wait_tensor")}


def wrong_in_a_and_b():
    return {"A": ([0], "wait", "barrier"), "B": ([0], "schema", "mutates_args")}


def no_rank_in_b():
    return DIAGNOSIS | {"B": ([], "schema", "mutates_args")}


def order_in_a():
    return DIAGNOSIS | {"A": ([0], "order", "one order")}


def shape_in_b():
    return DIAGNOSIS | {"B": ([0, 1], "shape", "mutates_args")}


def barrier():
    return DIAGNOSIS | {"A": ([0], "wait", "barrier")}


def one_graph():
    return DIAGNOSIS | {"B": ([0, 1], "schema", "fullgraph")}


def other_cure():
    return DIAGNOSIS | {"B": ([0, 1], "schema", "wait_tensor")}


def in_prose():
    return DIAGNOSIS | {"A": ([0], "no wait", "wait_tensor")}


def one_job():
    return {"A": DIAGNOSIS["A"]}


TRACEABLE = {
    no_fake_kernel: "by a function for register_fake",
    no_fake_kernel_and_its_own_strides: "by a function for register_fake",
    in_plain_python: "belongs inside the operator",
    hidden_from_dynamo: "hidden from Dynamo",
    torchs_own: "make an operator with a schema",
    into_the_argument: "the caller keeps x",
    gives_the_argument: "returns memory of its own",
    drops_what_came: "nothing has come from the root",
    always_from_rank_0: "for each call anew",
    always_all_ranks: "is it the group that was given",
    all_ranks_and_its_own_strides: "is it the group that was given",
    root_0_and_its_own_strides: "for each call anew",
    keeps_the_strides: "strides may differ by rank",
    transposed_strides: "shape, strides and dtype",
    on_the_cpu: "the device, too",
    receivers_keep_their_strides: "strides may differ by rank",
    in_float32: "keep the dtype of x inside",
    in_float64: "keep the dtype of x inside",
    of_real_numbers: "keep the dtype of x inside",
    row_by_row: "any shape",
    another_operator_on_the_root: "decided inside the operator",
    by_a_product: "inf * 0",
    global_root: "a global rank",
    without_a_wait: "it does not wait",
    root_returns_x: "returns memory of its own",
    declares_a_write: "mutates_args names what",
    fixed_shape: "shape, strides and dtype",
    two_dimensions: "shape, strides and dtype",
    without_dtype: "shape, strides and dtype",
    flat: "in another shape: like x",
    no_function: "a function of x, src and group",
    library_that_is_gone: "lives as long as the Library",
    without_annotations: "read from the annotations",
}
JOBS = {
    both_ranks_in_a: "compare it with each log",
    the_other_rank_in_a: "compare it with each log",
    no_rank_in_b: "is it a sum over ranks",
    order_in_a: "go back from `add`",
    shape_in_b: "which lines of the source are in the graph",
    barrier: "not what stands in a graph",
    one_graph: "has one graph already",
    other_cure: "the cure of another one",
    in_prose: "one of 'order', 'wait'",
    one_job: "ranks, cause and change of each job",
}


WRONG = {"semantics.traceable": TRACEABLE, "semantics.jobs": JOBS}
