"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import switch

BREAK_IT = Experiment(
    name="break-it",
    module="break_it.experiment",
    title="Ten break-it tests",
    question="Does it crash rather than hang, and say why?",
    source="topic 12, minimal daily regression suite (break-it tests)",
    cpu_backend="gloo",
    options=(switch("undefended", "leave out the part that is tested: every test has to go red"),),
    parts={
        "smoke": "a call without work in between",
        "env": "SCOPE_KV_BIAS_BACKEND differs on one rank",
        "compile-gate": "nothing; undefended, the all-reduce is disabled",
        "first-break": "a slice by a tensor's value; undefended, a log call before it",
        "guards": "nothing; undefended, the warmup has another shape",
        "one-dimension": "a length varies, undefended on one rank only",
        "orphan": "the leader is killed",
        "preflight": "metadata that cannot be pickled",
        "digest": "one element on rank 0, by 1e-6",
        "fingerprint": "one weight of a shard on the last rank",
    },
)
