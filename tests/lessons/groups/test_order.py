"""Groups that ranks make in different orders: wrong sums, and no check that says so (lesson 01, section 6)."""

from __future__ import annotations

import lesson_cells
import pytest

import labkit


@pytest.mark.slow
@pytest.mark.parametrize("env", [{}, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}])
def test_swapped_groups_exchange_their_members_and_no_check_sees_it(env):
    another_order = lesson_cells.definitions("01_process_groups", "cell-32-l01")["another_order"]
    with labkit.Ranks(4, device="cpu", backend="gloo", verify=not env, env=env, quiet=True) as four:
        assert list(four.run(another_order).values()) == [3.0] * 4
