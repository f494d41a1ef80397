"""The page of `oddrank look --torch`: one table over all versions, what changes, and the pages of their runs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from oddrank.counted import counted
from oddrank.look import changes
from oddrank.look.frames import table
from oddrank.page import document, escape

__all__ = ["html"]

EXPLAINED = (
    "What differs between runs of one version is not compared. Numbers are the largest difference, divided by the"
    " largest number of its tensor; close means within {tolerance}. More: docs/look_versions.md of oddrank."
)


def tolerance(body: dict[str, Any]) -> str:
    """Say which tolerance counts as close."""
    value = body["tolerance"]
    said = "the tolerance that torch.testing.assert_close has for the dtype"
    return said if value is None else f"{value:g}, relative and absolute"


def html(body: dict[str, Any], allowed: list[str]) -> str:
    """Return the page.

    Args:
        body: What was measured.
        allowed: What may change.
    """
    versions = body["versions"]
    told = changes.tell(versions)
    parts = [
        f"<h1>{escape(body['program'])}</h1>",
        f"<p class='quiet'><code>{escape(body['command'])}</code> on {len(versions)} versions of torch,"
        f" {counted(len(versions[0]['runs']), 'runs')} each, in turn, with empty compile caches</p>",
        *(f"<p class='{_mark(one, allowed)}'>{escape(one.sentence)}.</p>" for one in told),
        table(pd.DataFrame(list(changes.shown(versions))).astype(str)),
    ]
    for one, version in zip(told, versions, strict=True):
        parts += [f"<h2>torch {escape(one.label)}</h2>", *_version(one, version, allowed)]
    parts.append(f"<p class='quiet'>{EXPLAINED.format(tolerance=escape(tolerance(body)))}</p>")
    data = "<p class='quiet'>This page loads nothing from a network and sends nothing. All numbers are in the"
    return document(
        f"{body['program']}: versions of torch", [*parts, f"{data} <code>versions.json</code> beside it.</p>"]
    )


def _mark(told: changes.Told, allowed: list[str]) -> str:
    return "bad" if told.error or any(change.name not in allowed for change in told.changes) else "good"


def _version(told: changes.Told, version: dict[str, Any], allowed: list[str]) -> list[str]:
    rows = [
        {"changed": change.name, "what": change.said, "allowed": "yes" if change.name in allowed else "no"}
        for change in told.changes
    ]
    parts = [table(pd.DataFrame(rows))] if rows else []
    items = "".join(f"<li>{escape(one)}</li>" for one in told.left)
    parts.append(f"<p>Not compared:</p><ul>{items}</ul>" if items else "")
    for run in version["runs"]:
        at = escape(run["folder"])
        links = f"<a href='{at}/index.html'>page</a>, <a href='{at}.log'>output</a>"
        first = f", first step {run['first_s']:.1f} s" if run.get("first_s") is not None else ""
        failed = f"<pre>{escape(run['error'])}</pre>" if run["error"] else ""
        parts.append(f"<p class='quiet'>{links}: {run['seconds']:.0f} s{first}</p>{failed}")
    every = [one for run in version["runs"] for one in run.get("causes", [])]
    causes = dict.fromkeys(": ".join(filter(None, [one["place"], one["said"]])) for one in every)
    items = "".join(f"<li>{escape(one)}</li>" for one in causes)
    parts.append(
        f"<details><summary>causes: {len(causes)}</summary><ol>{items}</ol></details>" * bool(causes)
    )
    return parts
