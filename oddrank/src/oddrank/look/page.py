"""The page of `oddrank look`: one HTML file that holds everything it shows, and loads nothing."""

from __future__ import annotations

import base64
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from oddrank.counted import counted
from oddrank.look import causes, program_source, replicas, step_collectives, switches, trained
from oddrank.look.breaks import Phase, phases
from oddrank.look.frames import table
from oddrank.look.library_breaks import folded
from oddrank.look.look import Look
from oddrank.page import document, escape
from oddrank.strip.viewer import viewer

__all__ = ["html", "picture"]

PHASES = {"dynamo": "Dynamo: tracing and guards, s", "backend": "backend, s"}
PHASE = [one.name for one in fields(Phase)]


def html(looked: Look, failure: str = "", step: str = "", tlparse: str = "") -> str:
    """Return the page.

    Args:
        looked: What ranks recorded.
        failure: Why the script failed afterwards, '' if it did not.
        step: The function that was said to be a step, '' for none.
        tlparse: The address of tlparse's report, relative to the page, or a sentence that says why there is none.
    """
    unit, apart, took, verdict = looked.unit, looked.apart(), looked.duration_ms(), looked.verdict()
    found = causes.causes(looked)
    how = f"calls of <code>{escape(step)}</code>" if step else {
        "step": "from a compiled call, or the forward of DDP or FSDP2 around it, to the end of"
        " <code>optimizer.step</code>",
        "forward": "one compiled call each",
    }[unit]  # fmt: skip
    parts = [
        f"<h1>{escape(looked.name)}</h1>",
        f"<p class='quiet'>{counted(looked.steps, f'{unit}s')} ({how}) on {counted(len(looked.ranks), 'ranks')}"
        f" · {escape(looked.record.label)}"
        f"{'' if pd.isna(took) else f' · {took:.1f} ms a {unit} under the profiler'}</p>",
        f"<div class='bad'><b>The script failed after these {unit}s were recorded.</b>"
        f"<pre>{escape(failure)}</pre></div>"
        if failure
        else "",
        f"<p class='{'bad' if apart or looked.missing else 'good'}'>{escape(verdict[:1].upper() + verdict[1:])}.</p>",
        _wrong(found),
        table(
            looked.counts.round(2),
            f"Regions, breaks and collectives per {unit}; the others in the whole run.",
        ),
        f"<p class='quiet'>{escape(sent[:1].upper() + sent[1:])}.</p>" if (sent := looked.messages()) else "",
        *program_source.parts(looked.source),
        *_to_do(looked, found),
        f"<h2>The strip of one {unit}</h2>",
        viewer(looked.record),
        *_breaks(looked),
        *_ranks(looked),
        *_first_call(looked),
        f"<h2>Collectives per {unit}</h2>",
        table(looked.collectives.round(2), "In the order of the first call."),
        "<h2>tlparse</h2>",
        f"<p><a href='{escape(tlparse)}'>What every rank compiled, by tlparse</a>. It holds your source code, and"
        " links to the web that you may follow.</p>"
        if tlparse.endswith(".html")
        else f"<p class='quiet'>Not made: {escape(tlparse or 'it was not asked for')}.</p>",
        "<h2>Provenance</h2>",
        _facts(looked.provenance),
        "".join(f"<p class='quiet'>Note: {escape(note)}</p>" for note in looked.notes),
        "<p class='quiet'>This page loads nothing from a network and sends nothing. All tables are in the"
        " <code>rank-N.json</code> beside it.</p>",
    ]
    return document(f"{looked.name}: oddrank look", parts)


def picture(figure: Any, text: str) -> str:
    """Return a figure as an image that stands in the page itself, with a text for those who do not see it."""
    data = base64.b64encode(figure.png()).decode()
    return f"<img alt='{escape(text)}' src='data:image/png;base64,{data}'>"


def _wrong(every: list[causes.Cause]) -> str:
    """What is wrong where ranks do not differ."""
    found = [
        cause
        for cause in every
        if cause.wrong and not cause.expected and not cause.said.startswith(causes.APART)
    ]
    if not found:
        return ""
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"<p class='bad'>{escape(found[0].line)}{more}: <a href='#first'>what to do first</a>.</p>"


def _to_do(looked: Look, found: list[causes.Cause]) -> list[str]:
    own = folded(looked)
    parts = ["<h2 id='first'>What to do first</h2>"]
    if not found:
        parts.append("<p>Nothing was found in the program's own code.</p>")
    else:
        items = [_cause(cause, number <= causes.OPEN) for number, cause in enumerate(found, 1)]
        parts += [f"<p class='quiet'>{causes.ORDER}</p>", f"<ol class='first'>{''.join(items)}</ol>"]
    for one in own:
        places = "".join(f"<li>{escape(place)}</li>" for place in one.places)
        parts.append(f"<details><summary>{escape(one)}</summary><ul>{places}</ul></details>")
    held = looked.held
    if looked.unit == "step":
        every = trained.checked(held["parameters"], held["averages"], held["seen"])
        told = "".join(f"<li>{escape(one)}</li>" for one in every)
        parts.append(
            f"<details><summary>What was looked at in the training</summary><ul>{told}</ul></details>"
        )
    switched = switches.rows(looked)
    said = "What torch's own record proves. What it says nothing of has no row."
    return [*parts, "<h2>What was asked, and what was got</h2>", table(switched, said)]


def _cause(cause: causes.Cause, whole: bool) -> str:
    first, *rest = cause.lines()
    hints = [f"<span class='quiet'>torch's hint: {escape(hint)}</span>" for hint in cause.hint.splitlines()]
    below = "<br>".join([*map(escape, rest), *hints])
    if whole:
        return f"<li><b>{escape(first)}</b><br>{below}</li>"
    return f"<li><details><summary>{escape(cause.line)}</summary>{below}</details></li>"


def _breaks(looked: Look) -> list[str]:
    costly = looked.breaks
    parts = [f"<h2>Executed breaks per {looked.unit}</h2>"]
    if len(costly):
        costly = costly.assign(share=costly["share"].map("{:.0%}".format)).drop(
            columns=["explanation", "hints", "owner"]
        )
    names = {"outside_ms": "ms outside, at most", "share": f"of the {looked.unit}"}
    return [*parts, table(costly.rename(columns=names))]


def _ranks(looked: Look) -> list[str]:
    if len(looked.ranks) < 2:
        return []
    parts = ["<h2>What differs between ranks</h2>"]
    for stage, title in (("dynamo", "graph"), ("guards", "guards")):
        differing = looked.differing(stage)
        for name, compared in differing[:3]:
            said = f"<summary>The {title} of {escape(name)}: {counted(compared.different, 'lines differ')}</summary>"
            parts.append(f"<details>{said}<div class='diff'>{compared._repr_html_()}</div></details>")
        if len(differing) > 3:
            parts.append(f"<p class='quiet'>… and {len(differing) - 3} more with other {title}.</p>")
    held = replicas.differing(looked.held["replicas"])
    if len(held):
        parts.append(table(held, "Parameters and buffers after the last recorded step, by their 2-norm."))
    parts += [f"<p>{escape(said)}.</p>" for said in step_collectives.differing(looked.held["calls"])]
    listed = "".join(
        f"<li>{escape(said)}</li>" for said in [*looked.compared(), "guards, without ids of objects"]
    )
    parts.append(f"<p class='quiet'>Compared:</p><ul class='quiet'>{listed}</ul>")
    return [
        *parts,
        *(f"<p class='quiet'>{escape(said)}.</p>" for said in replicas.left_out(looked.held["replicas"])),
    ]


def _first_call(looked: Look) -> list[str]:
    compiles = pd.DataFrame(
        [asdict(phase) for row in looked.whole.compiles for phase in phases(row)], columns=PHASE
    )
    sums = compiles.groupby("rank")[list(PHASES)].sum().reset_index().rename(columns=PHASES)
    sums.insert(1, "compiles", compiles.groupby("rank").size().to_numpy())
    slowest = compiles.sort_values("seconds", ascending=False).head(5)
    slowest = slowest[["rank", "name", "place", "seconds", *PHASES]].rename(columns=PHASES)
    return [
        "<h2>Compiling, by phase</h2>",
        table(sums, "In the whole run. A cache that was warm makes the backend short."),
        table(slowest, "The longest compiles."),
    ]


def _facts(facts: dict[str, Any]) -> str:
    told = ((key, value) for key, value in facts.items() if value not in ("", []))
    return f"<table>{''.join(f'<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>' for k, v in told)}</table>"
