"""Activation offloading, by the graphs of AOTAutograd's own passes: which copies stand where, and what stays behind.

Read off the graphs, where no copy is made and no memory is taken; times and peaks are measured where there is a GPU.
"""

from __future__ import annotations

from labkit import lessons
from labkit.lessons.compiled_streams import experiment
from labkit.lessons.compiled_streams.offload import traced
from labkit.lessons.shared.timed import timed, timing_result
from labkit.study.checks import Bench, Result, Seen, judging, probe, quietly, verdict

KEPT, AHEAD = "kept", "waits at the end"  # ways of the lesson's program
LAYERS = 4


@probe
def passes(bench: Bench) -> Seen:
    """The order of products, copies and waits without offloading and with it, and the bytes that stay on the device."""
    # the slides' small configuration, with half of its layers: how far ahead a reload goes depends on the shape
    shape = lessons.program("compiled_streams").Shape(width=1024, layers=LAYERS, batch=64, sequence=512)
    graphs = quietly(lambda: traced(shape, [KEPT, AHEAD]))
    found: Seen = {"layers": LAYERS}
    for name, key in ((KEPT, "without"), (AHEAD, "with")):
        one = graphs[name]
        sizes = {node.name: node.size for node in one.forward}
        found[key] = {
            "forward": [[n.name, n.word, list(n.needs), bool(n.flops)] for n in one.forward],
            "backward": [[n.name, n.word, list(n.needs), bool(n.flops)] for n in one.backward],
            "kept": [[name, sizes.get(name, 0)] for name in one.kept],
            "carried": sum(n.moved for n in (*one.forward, *one.backward) if n.word in ("offload", "reload")),
        }
    return found


def _kept(seen: Seen, key: str) -> int:
    return sum(size for _, size in seen[key]["kept"])


@judging(passes)
def copies_follow_their_layers(seen: Seen) -> Result:
    """Behind products of every layer stands an offload, torch's copy on a stream of its own; less stays."""
    rows = seen["with"]["forward"]
    names = [name for name, *_ in rows]
    copies = [(i, needs) for i, (_, word, needs, _) in enumerate(rows) if word == "offload"]
    products = [i for i, row in enumerate(rows) if row[3]]
    behind = all(names.index(needs[0]) < i for i, needs in copies)
    # a copy behind every layer whose output is kept, not all of them at the end
    spread = [sum(p < i for p in products) for i, _ in copies]
    less, each = _kept(seen, "with") < _kept(seen, "without"), len(products) / seen["layers"]
    layers = {-(-count // each) for count in spread}  # products of a layer are as many as of any other
    ok = behind and len(set(spread)) == len(spread) and layers == set(range(1, seen["layers"] + 1)) and less
    return verdict(
        ok,
        f"{len(copies)} copies, behind {', '.join(map(str, spread)) or 'no'} products of {each:g} a layer; kept on the "
        f"device {_kept(seen, 'with')} bytes of {_kept(seen, 'without')}",
    )


def _ahead(seen: Seen) -> list[int]:
    """For each reload, in the order of their waits: how many products stand between it and its wait."""
    rows = seen["with"]["backward"]
    at = {name: i for i, (name, word, *_) in enumerate(rows) if word == "reload"}
    return [
        sum(bool(row[3]) for row in rows[at[needs[0]] : i])
        for i, (_, word, needs, _) in enumerate(rows)
        if word == "wait" and needs and needs[0] in at
    ]


@judging(passes)
def reloads_come_a_layer_early(seen: Seen) -> Result:
    """Between each reload and its wait stand products, of one layer at the most; none may, before what comes first."""
    ahead = _ahead(seen)
    layer = sum(bool(row[3]) for row in seen["with"]["backward"]) / seen["layers"]
    said = f"products between a reload and its wait: {', '.join(map(str, ahead)) or 'no reload'}; a layer has {layer:g}"
    return verdict(len(ahead) > 1 and all(0 < count <= layer for count in ahead[1:]), said)


@judging(passes)
def bytes_are_carried_for_bytes_kept(seen: Seen) -> Result:
    """What no longer stays on the device crosses the link twice: out, and in again."""
    less, carried = _kept(seen, "without") - _kept(seen, "with"), seen["with"]["carried"]
    said = f"{less} bytes less are kept, {carried} bytes cross the link"
    return verdict(less > 0 and carried == 2 * less and not seen["without"]["carried"], said)


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
