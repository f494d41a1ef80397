"""Checks that keep compiled distributed code the same on every rank: parts to copy, each usable alone."""

from __future__ import annotations

from labkit.contract.domain import Domain, WrongGroup
from labkit.contract.drift import (
    DigestError,
    FingerprintError,
    Fingerprints,
    InputDigests,
    digest,
    fingerprint,
)
from labkit.contract.eager import assert_in_place, dispatched
from labkit.contract.exchange import Absent, ContractError, Exchange, rehearse
from labkit.contract.health import Health, HealthError, assert_same_health, compile_health
from labkit.contract.parity import ParityError, assert_parity, settings, versions
from labkit.contract.plan import Plan, PlanError, Run, agree, announce, executing
from labkit.contract.preflight import PreflightError, preflight, receive, send
from labkit.contract.warmup import NotSteady, OverBudget, Warm, warm_up
from labkit.contract.watchdog import Heartbeat, Watchdog, crash_after

__all__ = [
    "Absent",
    "ContractError",
    "DigestError",
    "Domain",
    "Exchange",
    "FingerprintError",
    "Fingerprints",
    "Health",
    "HealthError",
    "Heartbeat",
    "InputDigests",
    "NotSteady",
    "OverBudget",
    "ParityError",
    "Plan",
    "PlanError",
    "PreflightError",
    "Run",
    "Warm",
    "Watchdog",
    "WrongGroup",
    "agree",
    "announce",
    "assert_in_place",
    "assert_parity",
    "assert_same_health",
    "compile_health",
    "crash_after",
    "digest",
    "dispatched",
    "executing",
    "fingerprint",
    "preflight",
    "receive",
    "rehearse",
    "send",
    "settings",
    "versions",
    "warm_up",
]
