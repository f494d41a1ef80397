"""Runs an unchanged script on a rank, as torchrun would, and writes what was recorded of its steps to a folder."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import os
import pkgutil
import shlex
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch
import torch.distributed as dist

from oddrank.live.here import failing, here
from oddrank.live.introspect import aside
from oddrank.look import callables, decorated, program_source, replicas, rows, step_collectives
from oddrank.look.averaging import Averaging
from oddrank.look.checkpoints import Loads
from oddrank.look.choices import Choices
from oddrank.look.crossed import Batches
from oddrank.look.entering import Entering
from oddrank.look.epochs import Epochs
from oddrank.look.forwards import Forwards
from oddrank.look.gradients import Leaving
from oddrank.look.look import FIRST, HELD, RECORDED, TEXTS, TIMES, WHOLE
from oddrank.look.parameter_names import name_parameters
from oddrank.look.rescaled import Scaling
from oddrank.look.schedules import Schedules
from oddrank.look.steps import Options, Steps, watching, wrapped
from oddrank.look.training import Training
from oddrank.look.values import Values
from oddrank.look.weight_names import Names
from oddrank.places import rewrite
from oddrank.record import Compile, Tables, install
from oddrank.record.compiles import Try
from oddrank.record.profile import shared_clock
from oddrank.report import Report, provenance
from oddrank.stages.guards import parse

__all__ = [
    *("Program", "backend_of", "execute", "followed", "force_backend", "report_of", "watch"),
]

STEP = "__oddrank_step__"  # what the decorator of the named function is called in the script


@dataclass(frozen=True)
class Program:
    """A script to run.

    Args:
        target: The path of the script, or the name of a module.
        module: Whether it is the name of a module.
        arguments: What the script finds in `sys.argv[1:]`.
        backend: The backend that its process groups get, whatever the script asks for; '' for what it asks for.
    """

    target: str
    module: bool = False
    arguments: tuple[str, ...] = ()
    backend: str = ""

    @property
    def name(self) -> str:
        """The script's or module's bare name."""
        return self.target if self.module else os.path.basename(self.target)

    @property
    def command(self) -> str:
        """What one would type after `python`, without the folder of the script."""
        return shlex.join([*(["-m"] if self.module else []), self.name, *self.arguments])


def watch(fn: Callable[..., Any], args: tuple, kwargs: dict, options: Options) -> Report:
    """Call a function on this rank and return what was recorded of its steps.

    Args:
        fn: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        options: Which steps to record.
    """
    kept: list[Report] = []
    with followed(options, lambda steps: kept.append(report_of(steps, here().rank, fn.__name__))) as steps:
        with _marked(fn, steps), _saying_at_once():
            (wrapped(fn, steps.named) if options.step == fn.__name__ else fn)(*args, **kwargs)
    return kept[-1]


@contextlib.contextmanager
def _saying_at_once() -> Any:
    """Let an error in the block be known now: to write what was recorded takes longer than another rank may have."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(Exception):
            name_parameters(error)
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            failing(error)
        raise


def _marked(fn: Callable[..., Any], steps: Steps) -> Any:
    """Mark in a block what `fn` knows under the name of the step: a function, or `Class.method`."""
    owner, _, name = steps.options.step.rpartition(".")
    known = getattr(inspect.unwrap(fn), "__globals__", {})  # a decorated function has those of its decorator
    holder = known.get(owner)
    if isinstance(holder, type) and hasattr(holder, name):
        return mock.patch.object(holder, name, wrapped(getattr(holder, name), steps.named))
    if not owner and name in known:
        return _replaced(known, name, wrapped(known[name], steps.named))
    return contextlib.nullcontext()


@contextlib.contextmanager
def _replaced(known: dict[str, Any], name: str, value: Any) -> Any:
    """Let a global be another one in a block; Dynamo adds globals meanwhile, which stay."""
    before, known[name] = known[name], value
    try:
        yield
    finally:
        known[name] = before


@contextlib.contextmanager
def followed(options: Options, keep: Callable[[Steps], None]) -> Any:
    """Find and record steps in a block, and give what was recorded to `keep`: when it is complete, and at the end."""

    def complete() -> None:
        if steps.rec is not None and not steps.after:  # compared later it would be of a later step
            steps.after = _held(steps, first, averaging, leaving, names, training)
            values.take()
        keep(steps)

    def begin() -> None:
        with contextlib.suppress(Exception):  # then plain parameters are not compared
            first.update(replicas.begin())
        leaving.attach()
        scaling.attach()
        entering.attach()
        with contextlib.suppress(Exception):
            names.begin()

    first: replicas.First = {}
    averaging, loads, names, batches = Averaging(), Loads(), Names(), Batches()
    steps = Steps(options, lambda: aside(complete), lambda: aside(begin))
    scaling, entering, orders, forwards = Scaling(steps), Entering(steps), Epochs(steps), Forwards(steps)
    schedules = Schedules(steps)
    steps.noted |= {"loads": loads.table, "crossed": batches.table, "forwards": forwards.table}
    steps.noted |= {"rescaled": scaling.table, "entering": entering.table, "epochs": orders.table}
    steps.noted |= {"schedules": schedules.table}
    steps.begins.append(lambda: aside(averaging.own))
    leaving, training = Leaving(lambda: not steps.since_ns), Training(steps)
    values = Values(steps, each=options.way is not None)
    with contextlib.ExitStack() as last:
        last.callback(leaving.close)
        last.callback(scaling.close)
        last.callback(entering.close)
        last.enter_context(averaging.watching())
        last.enter_context(loads.watching())
        last.enter_context(orders.watching())
        last.enter_context(schedules.watching())
        last.enter_context(names.watching())
        last.enter_context(batches.watching())
        last.enter_context(decorated.noting())
        last.enter_context(Choices().watching())
        last.callback(aside, complete)  # also where the program fails, and with later recompiles
        last.enter_context(watching(steps))
        training.listen()
        if options.values:
            values.listen()
        yield steps


def _held(
    steps: Steps,
    first: replicas.First,
    averaging: Averaging,
    leaving: Leaving,
    names: Names,
    training: Training,
) -> dict[str, pd.DataFrame]:
    """What this rank holds now, and which collectives it has called since the first recorded step."""
    rank = here().rank
    try:
        reasons = averaging.reasons(steps.since_ns)
        return {
            "replicas": replicas.take(rank, first, reasons),
            "calls": step_collectives.take(rank, steps.since_ns),
            "gradients": leaving.table(rank),
            "names": names.table(rank),
            **training.tables(rank, steps.since_ns, averaging.entered()),
        }
    except Exception as error:  # the script goes on
        said = f"rank {rank}'s parameters and collectives were not compared: {type(error).__name__}: {error}"
        steps.note = "; ".join(filter(None, [steps.note, said]))
        return {}


def force_backend(backend: str) -> None:
    """Give the script's process groups this backend, whatever it asks for; '' leaves it as it is."""
    if not backend:
        return
    asked = dist.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("backend", None)
        return asked(backend, *args[1:], **kwargs)

    for module in (dist, dist.distributed_c10d, sys.modules.get("torch.distributed.device_mesh")):
        if module is not None:
            module.init_process_group = init_process_group  # type: ignore[attr-defined]


def backend_of() -> str:
    """The backend of the script's default process group; '' where it has none."""
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    if (backend := str(dist.get_backend())) != "undefined":
        return backend
    # init_device_mesh asks for none, and gets one for each kind of device: 'cpu:gloo,cuda:nccl'
    each = dict(one.split(":") for one in str(dist.get_backend_config()).split(",") if ":" in one)
    return each.get("cuda" if torch.cuda.is_available() else "cpu", backend)


def execute(program: Program, options: Options, steps: Steps) -> None:
    """Run the script as `__main__`, with the decorator on the function that is the step."""
    main = types.ModuleType("__main__")
    path = program.target
    sys.path.insert(0, os.getcwd() if program.module else os.path.dirname(path))
    if program.module:
        spec = importlib.util.find_spec(path)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{path}.__main__")
        if spec is None or spec.origin is None:
            raise ValueError(f"there is no module {path} to run")
        path, main.__spec__, main.__package__ = spec.origin, spec, spec.parent
    main.__file__ = path
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.argv[:] = [path, *program.arguments]
    tree = ast.parse(Path(path).read_bytes(), path)
    if options.step and not _decorate(tree, options.step):
        owner, _, name = options.step.replace(":", ".").rpartition(".")
        try:
            holder = pkgutil.resolve_name(owner)
            setattr(holder, name, wrapped(getattr(holder, name), steps.named))
        except (ImportError, AttributeError, ValueError):
            raise ValueError(
                f"--step {options.step}: {program.name} defines no such function, and no module has it"
            ) from None
    vars(main)[STEP] = lambda fn: wrapped(fn, steps.named)
    sys.modules["__main__"] = main
    with _saying_at_once():
        exec(compile(tree, path, "exec"), vars(main))


def _decorate(tree: ast.Module, wanted: str) -> bool:
    """Decorate the functions of this name, such as `train_step` or `Trainer.step`; whether there was one."""
    found = False

    def walk(node: ast.AST, inside: str) -> None:
        nonlocal found
        for child in ast.iter_child_nodes(node):
            name = inside + getattr(child, "name", "")
            if isinstance(child, ast.FunctionDef) and wanted in (child.name, name):
                at = child.decorator_list[0] if child.decorator_list else child
                decorator = ast.copy_location(ast.Name(STEP, ast.Load()), at)
                child.decorator_list.insert(0, decorator)
                found = True
            walk(child, f"{name}." if isinstance(child, ast.ClassDef) else inside)

    walk(tree, "")
    return found


def report_of(steps: Steps, rank: int, name: str, command: str = "") -> Report:
    """What one rank says: the record of the steps, and of the whole run so far what was compiled."""
    log = install()
    now = log.epoch()
    rec = Tables(clock=shared_clock()) if steps.rec is None else steps.rec
    runs = {_compile(row): row.runs for row in rec.compiles}
    chosen = log.compiles.chosen(
        lambda one: (
            one.started >= steps.began or (one.gave_up and one.epoch == now) or _compile(one.row) in runs
        )
    )
    whole = log.compiles.tables(chosen)
    whole.collectives = rec.collectives
    for one, row in chosen:
        row.during, row.runs = one.started >= steps.began, runs.get(_compile(row))
    callables.name_forwards([*whole.compiles, *rec.compiles], steps.made, steps.forwards)
    texts = [
        (rank, row.id, row.name, rewrite(one.text("dynamo")), _guards(one))
        for one, row in chosen
        if one.has_code and row.during
    ]
    compiled = rows.frames(whole, operators=True)
    tables = {
        **rows.frames(rec),
        **{f"all_{part}": compiled[part] for part in WHOLE},
        **{part: pd.DataFrame([], columns=list(types)) for part, types in HELD.items()},
        "texts": pd.DataFrame(texts, columns=list(TEXTS)),
        "asked": callables.asked(steps.made),
        "effects": steps.seen.table(steps.made),
        **(noted := {name: table() for name, table in steps.noted.items()}),
        "sources": program_source.texts(whole, log.compiles.sources, noted["forwards"]),
        **steps.after,
    }
    tables = {key: table.assign(rank=rank) for key, table in tables.items()}  # the group may be gone already
    facts = {"command": command, "rank": rank, "world_size": here().world_size, "device": here().device}
    facts |= {"steps": steps.found, "compiled calls": steps.calls, "last step ended": not steps.open}
    facts |= {name: [s * 1e3 for s in steps.took[name.split()[0]]] for name in (*TIMES, FIRST)}
    facts |= {"pipeline": "torch.distributed.pipelining" in sys.modules}
    facts |= {"origin_ns": rec.origin_ns, "clock": rec.clock, RECORDED: sum(rec.profiled.values())}
    return Report(
        f"rank-{rank}",
        name,
        rec.label or here().label,
        tables,
        provenance=provenance(**facts),
        notes=[*rec.notes, *([steps.note] if steps.note else [])],
    )


def _compile(row: Compile) -> tuple[str, float]:
    """Which compile a row is of: tables that have others besides may number those of one id otherwise."""
    return row.id.partition(" ")[0], row.seconds


def _guards(one: Try) -> str:
    return "\n".join(f"{guard.protects}  {guard.kind}: {guard.test}" for guard in parse(one.text("guards")))
