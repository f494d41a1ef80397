"""The only package that touches a private or version-dependent torch name.

Everything here works on torch 2.11 to 2.15, but for what `features()` says of narrower ranges; a name that the
installed torch lacks raises `UnsupportedTorch`, which says the name, the installed version and the supported range.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from labkit.torch_compat import (
    backends,
    cold,
    compiler,
    dispatch,
    dtensor,
    groups,
    pretend,
    recording,
    streams,
)
from labkit.torch_compat.backends import (
    aot_backend,
    compile_backend,
    compiled_autograd,
    inductor_code,
    only_written,
)
from labkit.torch_compat.cold import (
    CPU_CHECK,
    compile_counts,
    compile_events,
    no_compile_caches,
)
from labkit.torch_compat.compiler import (
    COMPILER,
    PRELOAD,
    ddp_mode,
    dynamo_reset,
    fake_tensors,
    hide_from_dynamo,
    is_fake,
    mark,
    no_default_overlap,
    overlap_scheduling,
    patched,
    quiet_dynamo,
    renamed,
    symbolic,
    uncompiled,
)
from labkit.torch_compat.dispatch import around_operators, on_collective
from labkit.torch_compat.dtensor import dtensor_rules
from labkit.torch_compat.groups import (
    default_store,
    fake_store,
    flight_record,
    functional_collectives,
    functional_op,
    gather_cuda_over_gloo,
    local_gloo,
    not_in_flight_record,
    on_eager_collective,
    process_groups,
    replace_backend,
    replace_process_group,
    world_name,
)
from labkit.torch_compat.pretend import pretend_h100, pretend_streams, stated_hardware
from labkit.torch_compat.recording import (
    bytecode_hook,
    compilation_metrics,
    compile_id_of,
    current_compile_id,
    dynamo_frames_seen,
    event_shapes,
    fast_range,
    log_to,
    on_region_entry,
    profiler_events,
    profiler_mark,
    profiler_running,
    profiling_flag,
    quiet_profiler,
    sees_every_region,
    trace_logger,
)
from labkit.torch_compat.streams import (
    control_deps,
    cuda_sanitizer,
    external_objects,
    has_stream_graphs,
    no_mutation_check,
    pinned_pool,
    state_product,
    stream_names,
)
from labkit.torch_compat.versions import (
    READ,
    RUN,
    SUPPORTED,
    TESTED,
    Feature,
    UnsupportedTorch,
    check_version,
    require,
)

# each part states the private names that it needs in its `FEATURES`
PARTS = (
    groups, recording, compiler, backends, dispatch, dtensor, streams, pretend, cold,
)  # fmt: skip


def features() -> list[tuple[Feature, tuple[str, ...]]]:
    """List every feature of labkit that needs private names of torch.

    Returns:
        Each feature with the names it needs that the installed torch lacks.

    >>> feature, missing = features()[0]
    >>> feature.title, feature.versions, missing
    ('functional collectives', '2.11 to 2.15', ())
    """
    return [(feature, feature.missing()) for part in PARTS for feature in part.FEATURES]


def names() -> tuple[int, list[str]]:
    """Count the private torch names that this package asks for by name.

    Returns:
        Their number, and those that the installed torch lacks.

    >>> names()[0] > 20
    True
    """
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py")]
    asked = sorted(set(re.findall(r'require\(\s*"(torch[\w.]+)"\s*\)', "\n".join(sources))))
    missing = []
    for dotted in asked:
        try:
            require(dotted)
        except UnsupportedTorch:
            missing.append(dotted)
    return len(asked), missing


def __getattr__(name: str) -> Any:
    """`funcol`, resolved on first use so that importing this package imports no torch."""
    if name == "funcol":
        return functional_collectives()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
