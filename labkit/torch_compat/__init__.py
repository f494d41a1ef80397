"""The only package of labkit and the course that uses private or version-dependent names of torch.

Everything here is for torch 2.11 to 2.15, except where a call says `since=` or `until=`. A name that the installed
torch lacks raises `UnsupportedTorch`, which says the name, the installed version and those that have it.
"""

from __future__ import annotations

from typing import Any

from oddrank.torch_names import (
    UnsupportedTorch,
    current_compile_id,
    dynamo_reset,
    hide_from_dynamo,
    on_region_entry,
    profiler_events,
    profiler_mark,
    profiler_running,
    profiling_flag,
    quiet_profiler,
    span,
    within,
)

from labkit.torch_compat.backends import (
    aot_backend,
    inductor_code,
    only_written,
)
from labkit.torch_compat.cold import (
    CPU_CHECK,
    break_reasons,
    cache_hits,
    compile_events,
)
from labkit.torch_compat.compiler import (
    PRELOAD,
    code_of,
    fake_tensors,
    patched,
    refusals,
    settings_kept,
)
from labkit.torch_compat.groups import (
    around_operators,
    fake_store,
    functional_collectives,
    functional_op,
    gather_cuda_over_gloo,
    local_gloo,
    not_in_flight_record,
    on_collective,
    world_name,
)
from labkit.torch_compat.pretend import pretend_h100, pretend_streams, stated_hardware
from labkit.torch_compat.streams import (
    control_deps,
    cuda_sanitizer,
    has_stream_graphs,
    pinned_pool,
    state_product,
    stream_names,
)
from labkit.torch_compat.versions import RUN, SUPPORTED, TESTED, check_version


def __getattr__(name: str) -> Any:
    """`funcol`, resolved on first use so that importing this package imports no torch."""
    if name == "funcol":
        return functional_collectives()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
