"""Programs that the tests of stages compile, each in a Dynamo as in a new process."""

from __future__ import annotations

import pytest
import torch
from oddrank.stages import inspect

from oddrank import torch_names


@pytest.fixture(autouse=True)
def fresh():
    torch_names.dynamo_reset()


@pytest.fixture
def look():
    """`look(fn, *inputs, backend=...)`: the frames of one call; on two matrices by default, one with a gradient."""

    def call(fn, *tensors, backend="aot_eager"):
        inputs = tensors or (torch.ones(4, 4), torch.ones(4, 4, requires_grad=True))
        return inspect(torch.compile(fn, backend=backend), *inputs)

    return call
