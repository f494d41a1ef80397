"""The checks behind the claim ledger: probes that measure, judges that read what was measured.

A check's name is its module and its judge, `guards.static_by_default`. To add one: write the judge beside the probe
whose record it reads, name it in a row of data/claims.toml, lower `untested` there, and give the tests a record in
which the claim holds and one in which it does not.
"""

from __future__ import annotations

from labkit.study.checks import (
    autograd,
    backend,
    barriers,
    breaks,
    bucketing,
    cliff,
    cold,
    collectives,
    contract,
    cost,
    cuda_handover,
    cuda_streams,
    dtensor,
    endings,
    functional,
    groups,
    growth,
    guards,
    logs,
    membership,
    nccl,
    nccl_streams,
    redistribute,
    reference,
    rendezvous,
    routes,
    stream_code,
    stream_graphs,
    stream_inside,
    stream_offload,
    stream_programs,
    streams,
    suite,
    symmetry,
    tracing,
    training,
    trap,
    whole,
)
from labkit.study.checks.base import CHECKS, Bench, Check, Probe, Result

PARTS = (
    *(
        collectives,
        functional,
        tracing,
        autograd,
        breaks,
        guards,
        cliff,
        cost,
        trap,
        dtensor,
        redistribute,
        routes,
    ),
    *(rendezvous, groups, symmetry, bucketing, membership, training, backend, stream_graphs, stream_inside),
    *(stream_programs, stream_code, stream_offload, streams, logs, reference),
    *(contract, endings, suite, barriers, whole, growth, cold),
    *(nccl, nccl_streams, cuda_streams, cuda_handover),
)

__all__ = ["CHECKS", "PARTS", "Bench", "Check", "Probe", "Result"]
