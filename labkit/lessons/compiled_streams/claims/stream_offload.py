"""Activation offloading, by the graphs of AOTAutograd's own passes: which copies stand where, and what stays behind.

Read off the graphs, where no copy is made and no memory is taken; times and peaks are measured where there is a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from labkit import lessons, torch_compat
from labkit.lessons.compiled_streams import experiment
from labkit.lessons.compiled_streams.captured import in_a_child
from labkit.lessons.compiled_streams.offload import Rates, traced
from labkit.lessons.shared.timed import timed, timing_result
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, quietly, verdict

KEPT, AHEAD = "kept", "waits at the end"  # ways of the lesson's program
LAYERS = 4


@probe
def passes(bench: Bench) -> Seen:
    """The order of products, copies and waits without offloading and with it, and the bytes that stay on the device."""
    # the slides' small configuration, with half of its layers: how far ahead a reload goes depends on the shape
    shape = lessons.program("compiled_streams").Shape(width=1024, layers=LAYERS, batch=64, sequence=512)
    graphs = quietly(lambda: traced(shape, [KEPT, AHEAD]))
    graphs["fast"] = quietly(lambda: traced(shape, [AHEAD], rates=Rates(link_gbytes=500.0)))[AHEAD]
    found: Seen = {"layers": LAYERS, "one": quietly(lambda: in_a_child(_one_copy, ship=False))}
    for name, key in ((KEPT, "without"), (AHEAD, "with"), ("fast", "over a fast link")):
        one = graphs[name]
        sizes = {node.name: node.size for node in one.forward}
        found[key] = {
            "forward": [[n.name, n.word, list(n.needs), bool(n.flops)] for n in one.forward],
            "backward": [[n.name, n.word, list(n.needs), bool(n.flops)] for n in one.backward],
            "kept": [[name, sizes.get(name, 0)] for name in one.kept],
            "carried": sum(n.moved for n in (*one.forward, *one.backward) if n.word in ("offload", "reload")),
        }
    return found


def _one_copy() -> Seen:
    """In a child: what torch's operators do with one tensor, with stand-ins for streams and for pinned memory."""
    log: list[str] = []
    streams, on = {}, ["user's"]

    def told(name: str, method: str) -> Any:
        return lambda *given: log.append(f"{name} {method} {' '.join(one.name for one in given)}")

    for name in ("user's", "own"):
        methods = {method: told(name, method) for method in ("wait_stream", "record_event", "wait_event")}
        streams[name] = SimpleNamespace(name=name, **methods)
    empty, copy = torch.empty, torch.Tensor.copy_

    def pinned(*given: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        log.extend(["pinned memory"] * pin_memory)
        return empty(*given, **options)

    def copied(into: torch.Tensor, of: torch.Tensor, **options: Any) -> torch.Tensor:
        log.append(f"{on[0]} copies")
        return copy(into, of, **options)

    torch_compat.pinned_pool()  # the operators are registered where this is imported
    stands_in: dict[str, Any] = {
        "Stream": lambda **_: streams["own"],
        "Event": lambda: SimpleNamespace(name="event"),
    }
    own: dict[str, Any] = {
        "set_stream": lambda stream: on.__setitem__(0, stream.name),
        "current_stream": lambda _: streams[on[0]],
    }
    x = torch.ones(8)
    with (
        mock.patch.multiple(torch, empty=pinned, **stands_in),
        mock.patch.multiple(torch.accelerator, **own),
        mock.patch.object(torch.Tensor, "copy_", copied),
    ):
        try:
            y = torch.ops.ao.offload(x)
            log.append("goes on")
            torch.ops.ao.wait_tensor(y, x)
        except (RuntimeError, AttributeError) as error:  # asks the hardware in another way
            return {"error": str(error)[:80], "log": log, "left": -1, "right": False}
    return {"error": "", "log": log, "left": x.untyped_storage().size(), "right": bool((y == 1).all())}


# behind the work so far, into the host's memory, on another stream; the user's goes on, and waits where it is told to
ASIDE = ["own wait_stream user's", "pinned memory", "own copies", "own record_event event", "goes on"]


def _aside(seen: Seen) -> tuple[bool, str]:
    """Whether torch's operator copies on a stream of its own, and the wait behind it frees what was copied."""
    one = seen["one"]
    ok = one["log"] == [*ASIDE, "user's wait_event event"] and one["left"] == 0 and one["right"]
    return ok, f"one copy: {', '.join(one['log'])}; {one['left']} bytes left"


def _kept(seen: Seen, key: str) -> int:
    return sum(size for _, size in seen[key]["kept"])


@judging(passes)
def copies_follow_their_layers(seen: Seen) -> Result:
    """Behind products of every layer stands an offload, which copies on a stream of its own; less stays."""
    if seen["one"]["error"]:
        return cannot_tell("a torch whose copy asks for no GPU", seen["one"]["error"])
    aside, copied = _aside(seen)
    rows = seen["with"]["forward"]
    names = [name for name, *_ in rows]
    copies = [(i, needs) for i, (_, word, needs, _) in enumerate(rows) if word == "offload"]
    products = [i for i, row in enumerate(rows) if row[3]]
    behind = all(names.index(needs[0]) < i for i, needs in copies)
    # a copy behind every layer whose output is kept, not all of them at the end
    spread = [sum(p < i for p in products) for i, _ in copies]
    less, each = _kept(seen, "with") < _kept(seen, "without"), len(products) / seen["layers"]
    layers = {-(-count // each) for count in spread}  # products of a layer are as many as of any other
    ok = (
        behind
        and len(set(spread)) == len(spread)
        and layers == set(range(1, seen["layers"] + 1))
        and less
        and aside
    )
    return verdict(
        ok,
        f"{len(copies)} copies, behind {', '.join(map(str, spread)) or 'no'} products of {each:g} a layer; kept on the "
        f"device {_kept(seen, 'with')} bytes of {_kept(seen, 'without')}; {copied}",
    )


def _ahead(seen: Seen, way: str) -> list[int]:
    """For each reload, in the order of their waits: how many products stand between it and its wait."""
    rows = seen[way]["backward"]
    at = {name: i for i, (name, word, *_) in enumerate(rows) if word == "reload"}
    return [
        sum(bool(row[3]) for row in rows[at[needs[0]] : i])
        for i, (_, word, needs, _) in enumerate(rows)
        if word == "wait" and needs and needs[0] in at
    ]


@judging(passes)
def reloads_come_a_layer_early(seen: Seen) -> Result:
    """Between each reload and its wait stand products, of one layer at the most; none may, before what comes first.

    However fast the link is: what is ten times as fast is fetched as far ahead.
    """
    ahead, fast = _ahead(seen, "with"), _ahead(seen, "over a fast link")
    layer = sum(bool(row[3]) for row in seen["with"]["backward"]) / seen["layers"]
    said = f"products between a reload and its wait: {', '.join(map(str, ahead)) or 'no reload'}; a layer has {layer:g}"
    said += f"; where the link is ten times as fast: {', '.join(map(str, fast)) or 'no reload'}"
    a_layer = all(0 < count <= layer for count in (*ahead[1:], *fast[1:]))
    return verdict(len(ahead) > 1 and a_layer and ahead == fast, said)


@judging(passes)
def bytes_are_carried_for_bytes_kept(seen: Seen) -> Result:
    """What no longer stays on the device crosses the link twice: out, and in again."""
    less, carried = _kept(seen, "without") - _kept(seen, "with"), seen["with"]["carried"]
    aside, copied = _aside(seen)
    said = f"{less} bytes less are kept, {carried} bytes cross the link; {copied}"
    if seen["one"]["error"]:
        return cannot_tell("a torch whose copy asks for no GPU", seen["one"]["error"])
    return verdict(aside and less > 0 and carried == 2 * less and not seen["without"]["carried"], said)


@probe
def measured(bench: Bench) -> Seen:
    """The time of a step and its peak on a GPU, at the slides' small shape with two layers: kept, and offloaded."""
    report = experiment.run(bench.ranks(1, "nccl", "cuda"), ["Small"], deep=2)
    peaks = report.tables["summary"].set_index("way")["peak_mib"]
    taken = report.tables["samples"].groupby("variant")["seconds"].apply(tuple)
    return {
        "peak_mib": {name: float(peaks[name]) for name in (KEPT, AHEAD)},
        "steps": timed(report.label, taken, AHEAD, KEPT),
    }


@judging(measured)
def the_peak_is_lower_and_the_step_longer(seen: Seen) -> Result:
    """Offloading lowers the peak allocation, and the step takes longer."""
    peaks, found = seen["peak_mib"], timing_result(seen["steps"], "slower", "larger configurations on a GPU")
    said = f"two layers: a peak of {peaks[AHEAD]:.0f} instead of {peaks[KEPT]:.0f} MiB; a step is {found.measured}"
    if peaks[AHEAD] >= peaks[KEPT]:
        return verdict(False, said)
    return Result(found.status, said, found.missing)
