"""What survives what: each kind of artifact that a compile leaves behind, used after a change, in a fresh process."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from labkit import torch_compat
from labkit.lessons.cold import program as cold_program
from labkit.lessons.cold.declared import SURVIVAL as ABOUT
from labkit.lessons.cold.experiment import machine
from labkit.lessons.cold.on_ranks import AOT, AOTI, ARTIFACTS, DISK, own_caches, saved_artifacts
from labkit.lessons.shared.options import chosen
from labkit.lessons.shared.sweep import Sweep
from labkit.ranks import Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance, run_label

VIEW = "labkit.lessons.cold.survival_figures:figure"
KINDS = {
    DISK: "the cache folder that a first process left",
    ARTIFACTS: "torch.compiler.save_cache_artifacts, loaded into empty caches",
    AOT: "aot_compile, saved, and loaded by torch.compiler.load_compiled_function",
    AOTI: "torch.export and AOTInductor, a package",
}
NOTHING, SHAPE, WEIGHTS, EDIT = "nothing", "shape", "weights", "code"
SETTING, VARIABLE, VERSION = "setting", "environment", "torch version"
CHANGES = {
    NOTHING: "the same program, in another process",
    SHAPE: "6 rows come where 4 were compiled for",
    WEIGHTS: "the module's weights are twice as large",
    EDIT: "the module's forward is edited: `weight` becomes `weight.t()`",
    SETTING: "torch._inductor.config.size_asserts is off",
    VARIABLE: "the same, by TORCHINDUCTOR_SIZE_ASSERTS=0 for a new interpreter",
    VERSION: "torch.__version__ says 2.99.0; the libraries stay as they are",
}
USUAL = tuple(change for change in CHANGES if change != VARIABLE)
COLUMNS = ["kind", "change", "outcome", "said", "seconds", "asserts"]
HIT, MISS, REFUSED, WRONG = "hit", "miss", "refused", "wrong"


def run(
    ranks: Ranks,
    kind: Sequence[str] = (),
    change: Sequence[str] = (),
    *,
    full: bool = False,
    fresh: bool = False,
    folder: str | Path | None = None,
    talk: bool = False,
) -> Report:
    """Use each kind of artifact in a fresh process after each change, and say how that ended.

    kind, change: which of them, by default all but the change by an environment variable, which needs new interpreters
    (`full`). The outcome is 'hit' (right, and nothing was compiled), 'miss' (right, and compiled again), 'refused' (an
    error) or 'wrong' (it ran, and its numbers are not those of the program as it is now). As many pairs are tried at
    once as there are ranks; each rank is a process that has compiled nothing, with caches of its own.

    The program is two products, for which no C++ has to be built: what is looked up, and by which key, is the same.
    Raises ValueError for a name that does not exist, before any rank is started, and RankError when a rank fails.

    >>> import tempfile
    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks, tempfile.TemporaryDirectory() as folder:
    ...     report = run(ranks, ["second process"], ["nothing", "shape"], folder=folder)
    >>> list(report.frame["outcome"])
    ['hit', 'miss']
    """
    kinds = chosen(kind, KINDS, "kind")
    changes = chosen(change, CHANGES, "change") if change else list(CHANGES if full else USUAL)
    settings = {"world_size": ranks.world_size, "code": cold_program.SOURCE, "edits": cold_program.EDITS}
    sweep = Sweep("survival", settings, folder, fresh, talk)
    made = sweep.place / "made"
    pairs = [(k, c) for c in changes for k in kinds]
    size = ranks.world_size
    points: dict[str, Any] = {"built: " + ", ".join(kinds): None}
    for env in (False, True):  # a variable is read by a new interpreter only
        mine = [pair for pair in pairs if (pair[1] == VARIABLE) == env]
        for i in range(0, len(mine), size):
            points["; ".join(f"{k} after {c}" for k, c in mine[i : i + size])] = mine[i : i + size]

    def measure(point: list[tuple[str, str]] | None) -> list[dict[str, Any]]:
        if point is None:
            made.mkdir(parents=True, exist_ok=True)
            if AOTI in kinds:  # products need no loops of C++, and a package asks what the machine can do
                machine(made / "machine")
            (made / "machine").mkdir(exist_ok=True)
            cold_program.write(made / "program")
            cold_program.write(made / "edited", "transposed")
            with Ranks(size, "cpu", "gloo", quiet=True) as own:
                own.run(_build, str(made), kinds, timeout=600)
            return []
        new: dict[str, Any] = {}
        if point[0][1] == VARIABLE:
            new = {"start": "fresh", "env": {"TORCHINDUCTOR_SIZE_ASSERTS": "0"}}
        with Ranks(size, "cpu", "gloo", quiet=True, **new) as own:
            return [row for row in own.run(_use, str(made), point, timeout=600) if row]

    rows = sweep.run(points, measure)
    settings = {"world_size": size, "resumed": sweep.resumed}
    label = run_label("gloo", "cpu", size)  # of the processes that were started here
    return _report(rows, label, provenance(**settings), sweep.note())


# --- on a rank ---


def _model(folder: Path, change: str = NOTHING) -> Any:
    model = cold_program.made(folder / ("edited" if change == EDIT else "program"), "Products")
    if change == WEIGHTS:
        with torch.no_grad():
            for weight in model.weights:
                weight.mul_(2)
    return model


def _build(made: str, kinds: Sequence[str]) -> None:
    place, rank = Path(made), dist.get_rank()
    own_caches(place / f"built-{rank}", place / "machine")
    model, x = _model(place), cold_program.batch()
    with torch.no_grad():
        if AOTI in kinds and rank == dist.get_world_size() - 1:
            torch_compat.package(model, (x,), str(place / "model.pt2"))
        if rank == 0:
            torch.compile(model)(x)
            (place / "artifacts").write_bytes(saved_artifacts())
            shutil.copytree(place / "built-0", place / "caches", dirs_exist_ok=True)
            if AOT in kinds:
                torch_compat.precompile(model, (x,), str(place / "model.aot"))


def _use(made: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    """What the rank's own pair of the list comes to; None where there are fewer pairs than ranks."""
    place, rank = Path(made), dist.get_rank()
    if rank >= len(pairs):
        return None
    kind, change = pairs[rank]
    folder = own_caches(place / f"used-{rank}", place / ("caches" if kind == DISK else "machine"))
    if change == VERSION:
        torch.__version__ = TorchVersion("2.99.0")
    x, model = cold_program.batch(6 if change == SHAPE else 4), _model(place, change)
    said, right, began = "", False, time.perf_counter()
    settings: dict[str, Any] = {"size_asserts": False} if change == SETTING else {}
    if change == VERSION and kind == AOTI:  # loading would try the machine out anew for the version
        settings = {"cpp.vec_isa_ok": True}
    with torch.no_grad(), torch_compat.patched("inductor.config", **settings):
        expected = model(x)
        try:
            with quiet_stderr():  # a package warns of an output that it resizes
                y = _answer(kind, place, model, x)
            right = y.shape == expected.shape and bool(torch.allclose(y, expected, atol=1e-5))
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        seconds = time.perf_counter() - began
        asserts = bool(torch_compat.setting("inductor.config.size_asserts"))
    counted = torch_compat.cache_counters()
    misses = sum(count for name, count in counted.items() if name.endswith("cache_miss"))
    outcome = REFUSED if said else WRONG if not right else MISS if misses else HIT
    shutil.rmtree(folder, ignore_errors=True)
    return dict(zip(COLUMNS, (kind, change, outcome, said, seconds, asserts), strict=True))


def _answer(kind: str, place: Path, model: Any, x: Any) -> Any:
    if kind == AOTI:
        return torch_compat.load_package(str(place / "model.pt2"))(x)
    if kind == AOT:
        return torch_compat.load_precompiled(str(place / "model.aot"))(model, x)
    if kind == ARTIFACTS:
        torch.compiler.load_cache_artifacts((place / "artifacts").read_bytes())
    return torch.compile(model)(x)


# --- in the kernel ---


def _report(rows: list[dict[str, Any]], label: str, settings: dict[str, Any], resumed: str) -> Report:
    order = {name: i for names in (KINDS, CHANGES) for i, name in enumerate(names)}
    frame = pd.DataFrame(rows, columns=COLUMNS).sort_values(["kind", "change"], key=lambda s: s.map(order))
    frame = frame.reset_index(drop=True)
    notes = [
        "the torch version is changed in name only: it goes into the keys, and the libraries are the same",
        *([resumed] if resumed else []),
    ]
    tables = {"outcomes": frame, "summary": _summary(frame)}
    return Report("survival", ABOUT.title, label, tables, [], settings, notes, VIEW)


def _summary(frame: pd.DataFrame) -> pd.DataFrame:
    """How often each kind ended how."""
    table = frame.groupby(["kind", "outcome"], sort=False).size().unstack(fill_value=0)
    return table.reindex(columns=[HIT, MISS, REFUSED, WRONG], fill_value=0).reset_index()
