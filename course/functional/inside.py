"""What became of a program that was compiled: why it is not one graph, or its graph's edges and Inductor's calls."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch

from course.shared.capture import Capture
from labkit.torch_compat import code_of, dynamo_reset, refusals

__all__ = ["look", "short"]

CALL = re.compile(r"^ *((?:\w+ = )?(?:cpp_|triton_|torch\.ops|extern).*)$", re.MULTILINE)


def look(program: Callable[..., Any], x: torch.Tensor) -> dict[str, Any]:
    """Compile a program as one graph, without gradients.

    Args:
        program: It takes a tensor.
        x: The tensor; it may be changed.

    Returns:
        `why`: Dynamo's reason, '' if it is one graph. `edges`: each node after AOTAutograd, with the nodes whose
        values it takes. `calls`: Inductor's calls of kernels and collectives; a call may begin with `buf1 = `.

    >>> seen = look(lambda x: x * 2 + 1, torch.ones(2))
    >>> seen["edges"]
    [('arg0_1', []), ('mul', ['arg0_1']), ('add', ['mul']), ('output', ['add'])]
    """
    seen = Capture(aot=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dynamo says some refusals twice, and torch renames some calls
        dynamo_reset()
        try:
            torch.compile(program, backend=seen, fullgraph=True)(x)
        except refusals() as error:
            why = "\n".join(line.strip() for line in str(error).splitlines()[:2])
            return {"why": short(why), "edges": [], "calls": []}
        dynamo_reset()
        code, *_ = code_of(torch.compile(program, fullgraph=True), x)
    edges = [(node.name, [*map(str, node.all_input_nodes)]) for node in seen.forward[0].graph.nodes]
    body = code[code.index("def call(") : code.index("return (")]
    return {"why": "", "edges": edges, "calls": CALL.findall(body)}


def short(why: str) -> str:
    """Dynamo's reason without addresses and without what it guesses about a C++ function."""
    return re.sub(r" for <.*?>", "", why).split(" This function")[0]
