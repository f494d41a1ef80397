"""The checks behind the claim ledger: probes that measure, judges that read what was measured.

A check's name is its module and its judge, `guards.static_by_default`. To add one: write the judge beside the probe
whose record it reads, name it in a row of data/claims.toml, lower `untested` there, and give the tests a record in
which the claim holds and one in which it does not.
"""

from __future__ import annotations

from labkit.lessons.functional.claims import autograd, collectives, functional, tracing
from labkit.lessons.ddp.claims import backend, training
from labkit.lessons.groups.claims import barriers, groups, nccl, nccl_streams, rendezvous
from labkit.lessons.reading.claims import breaks, logs, whole
from labkit.lessons.symmetry.claims import bucketing, contract, endings, symmetry
from labkit.lessons.cliff.claims import cliff
from labkit.lessons.cold.claims import cold
from labkit.lessons.trap.claims import cost, trap
from labkit.lessons.streams.claims import cuda_handover, cuda_streams, stream_programs
from labkit.lessons.dtensor.claims import dtensor, redistribute, routes
from labkit.lessons.guards.claims import growth, guards
from labkit.lessons.mesh.claims import membership
from labkit.lessons.ledger.claims import reference
from labkit.lessons.compiled_streams.claims import stream_code, stream_graphs, stream_inside, stream_offload, streams
from labkit.lessons.break_it.claims import suite
from labkit.study.checks import CHECKS, Bench, Check, Probe, Result

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
