"""Lets tests and ranks here import `programs` and `engine` by name; Dynamo as in a new process, and two ranks."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def fresh():
    """Dynamo as in a new process, listened to, and no gradients."""
    import torch
    from oddrank.record import install

    from oddrank import torch_names

    install()
    torch_names.dynamo_reset()
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def fake_group():
    """A default group of two ranks in one process whose collectives do nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks():
    """Two gloo ranks on the CPU."""
    labkit = pytest.importorskip("labkit")
    with labkit.Ranks(2, device="cpu", backend="gloo", timeout=120, quiet=True) as two:
        yield two
