"""The only package that touches a private or version-dependent torch name.

Everything here works on torch 2.11 to 2.15, but for what `features()` says of narrower ranges; a name that the
installed torch lacks raises `UnsupportedTorch`, which says the name, the installed version and the supported range.
"""

from __future__ import annotations

from typing import Any

from labkit.torch_compat.backends import (
    aot_backend,
    compile_backend,
    compiled_autograd,
    inductor_code,
    only_written,
)
from labkit.torch_compat.cold import (
    CPU_CHECK,
    cache_counters,
    compile_events,
    has_cpp_compiler,
    load_artifacts,
    load_package,
    load_precompiled,
    no_compile_caches,
    package,
    precompile,
    probe_cpu,
    remote_caches,
    save_artifacts,
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
    setting,
    symbolic,
    uncompiled,
)
from labkit.torch_compat.dispatch import core_operators, decomposable, has_kernel, on_collective, on_operator
from labkit.torch_compat.dtensor import around_dtensor, dtensor_cache, dtensor_rules, forget_dtensor_rules
from labkit.torch_compat.groups import (
    default_store,
    fake_store,
    flight_record,
    functional_collectives,
    functional_op,
    local_gloo,
    not_in_flight_record,
    on_eager_collective,
    replace_backend,
    replace_process_group,
    world_name,
)
from labkit.torch_compat.pretend import pretend_h100, pretend_streams, pretend_version, stated_hardware
from labkit.torch_compat.recording import (
    bytecode_hook,
    compilation_metrics,
    compile_id_of,
    current_compile_id,
    dynamo_frames_seen,
    event_shapes,
    fast_range,
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
    SHORT,
    STREAM_NAMES,
    control_deps,
    cuda_sanitizer,
    cuda_sleep,
    external_objects,
    has_stream_graphs,
    no_mutation_check,
    offload_settings,
    stream_names,
    stream_operators,
    stream_table,
)
from labkit.torch_compat.table import features, names
from labkit.torch_compat.together import compiler_collectives_on_cpu, compiling_together
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

# fmt: off
__all__ = [
    "READ", "RUN", "SUPPORTED", "TESTED", "UnsupportedTorch", "check_version", "require", "Feature",
    "features", "names",
    "functional_op", "world_name", "default_store", "fake_store", "flight_record", "replace_process_group",
    "replace_backend", "on_eager_collective", "local_gloo", "not_in_flight_record",
    "trace_logger", "profiler_running", "quiet_profiler", "profiler_events", "event_shapes", "profiler_mark",
    "profiling_flag", "fast_range", "dynamo_frames_seen", "compilation_metrics", "current_compile_id",
    "compile_id_of",
    "on_region_entry", "sees_every_region", "bytecode_hook",
    "COMPILER", "PRELOAD", "dynamo_reset", "uncompiled", "hide_from_dynamo", "is_fake", "fake_tensors",
    "renamed", "setting", "patched", "no_default_overlap", "overlap_scheduling", "ddp_mode", "mark", "quiet_dynamo",
    "symbolic",
    "compile_backend", "compiled_autograd", "aot_backend", "only_written", "inductor_code",
    "on_operator", "on_collective", "has_kernel", "decomposable", "core_operators",
    "dtensor_cache", "forget_dtensor_rules", "around_dtensor", "dtensor_rules",
    "SHORT", "STREAM_NAMES", "stream_table", "has_stream_graphs", "stream_operators", "stream_names",
    "external_objects", "control_deps", "no_mutation_check", "offload_settings", "cuda_sanitizer",
    "cuda_sleep",
    "pretend_streams", "pretend_h100", "stated_hardware", "pretend_version",
    "compiling_together", "compiler_collectives_on_cpu",
    "no_compile_caches", "cache_counters", "has_cpp_compiler", "compile_events", "CPU_CHECK", "probe_cpu",
    "save_artifacts", "load_artifacts", "precompile", "load_precompiled", "package", "load_package",
    "remote_caches",
]
# fmt: on


def __getattr__(name: str) -> Any:
    """`funcol`, resolved on first use so that importing this package imports no torch."""
    if name == "funcol":
        return functional_collectives()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
