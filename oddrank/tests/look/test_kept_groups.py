"""A group lives on for a moment after its program has let go of it, and no longer."""

from __future__ import annotations

import time
import weakref

from oddrank.look import kept_groups

from oddrank import torch_names


def test_a_group_is_freed_when_its_threads_have_come_to_rest(monkeypatch):
    class Group:
        pass

    up, now = [Group(), Group()], [0.0]
    monkeypatch.setattr(torch_names, "process_groups", lambda: list(up))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    kept, first = kept_groups.KeptGroups(), weakref.ref(up[0])
    kept.look()
    del up[0]  # as destroy_process_group does
    for now[0] in (0.5, kept_groups.KEPT_S):
        kept.look()
        assert first() is not None
    now[0] += 0.5
    kept.look()
    assert first() is None and len(kept._seen) == 1
