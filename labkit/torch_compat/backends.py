"""Compile backends: torch's own by name, and those that keep what AOTAutograd and Inductor made."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

from oddrank.torch_names import replaced, require


def aot_backend(
    forward: list[Any],
    backward: list[Any],
    min_cut: bool = False,
    schedule: Callable[[Any, Any], Any] | None = None,
) -> Callable[..., Any]:
    """Make a compile backend that keeps the graphs of AOTAutograd and runs them as they are.

    Changed inputs are written back inside the graph, as Inductor has it.

    Args:
        forward: the list that gets the forward graphs.
        backward: the list that gets the backward graphs.
        min_cut: choose what to save for the backward pass as Inductor does, instead of saving everything.
        schedule: called with the forward and the backward `torch.fx.Graph`, which it may change; needs `min_cut`.
    """
    boxed = require("functorch.compile.make_boxed_func")

    def keep(graphs: list[Any]) -> Callable[..., Any]:
        def compiler(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return boxed(graph.forward)

        return compiler

    def partition(*given: Any, **named: Any) -> Any:
        pair = require("functorch.compile.min_cut_rematerialization_partition")(*given, **named)
        if schedule is not None:
            schedule(pair[0].graph, pair[1].graph)
            for one in pair:
                one.graph.lint()
                one.recompile()
        return pair

    return require("torch._dynamo.backends.common.aot_autograd")(
        fw_compiler=keep(forward),
        bw_compiler=keep(backward),
        inference_compiler=keep(forward),
        keep_inference_input_mutations=True,
        **({"partition_fn": partition} if min_cut else {}),
    )


@contextlib.contextmanager
def only_written() -> Iterator[list[str]]:
    """Make Inductor stop in a block, with an error, once it has written its code; yields the list of these texts."""
    written: list[str] = []

    def keep(source: str) -> None:
        written.append(source)
        raise RuntimeError("written, and not to be compiled")

    with replaced("torch._inductor.graph.GraphLowering.save_output_code", staticmethod(keep)):
        yield written


def inductor_code(texts: list[str], execute: bool = False) -> Callable[..., Any]:
    """Make a compile backend that keeps the code that Inductor writes for each graph.

    Args:
        texts: the list that gets the code, that of the forward graph first.
        execute: run what Inductor made; else the graph runs as it was before Inductor's passes.
    """
    boxed = require("functorch.compile.make_boxed_func")
    inner = require("torch._inductor.compile_fx.compile_fx_inner")

    def keep(graph: Any, inputs: Any, backward: bool) -> Any:
        if not execute:
            with only_written() as written, contextlib.suppress(Exception):
                inner(copy.deepcopy(graph), inputs, is_backward=backward)
            texts.extend(written)
            return boxed(graph.forward)
        with replaced("torch._inductor.graph.GraphLowering.save_output_code", staticmethod(texts.append)):
            return inner(graph, inputs, is_backward=backward)

    table = require("torch._inductor.decomposition.select_decomp_table")()
    compilers = {f"{way}_compiler": functools.partial(keep, backward=way == "bw") for way in ("fw", "bw")}
    return require("torch._dynamo.backends.common.aot_autograd")(**compilers, decompositions=table)
