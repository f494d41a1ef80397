"""`oddrank report`: one page of the reports that are saved in a folder, to send to somebody."""

from __future__ import annotations

import html
import json
from pathlib import Path

import oddrank.files
from oddrank.files import Unsaved
from oddrank.look import program_source, rows
from oddrank.look.frames import table
from oddrank.look.page import picture
from oddrank.page import document
from oddrank.report import Report

__all__ = ["PAGE", "write"]

PAGE = "report.html"


def write(folder: Path) -> Path:
    """Write the page of all reports in a folder and its folders, with figures and provenance.

    Args:
        folder: Where the reports are, and where the page goes.

    Returns:
        The path of the page.

    Raises:
        ValueError: If the folder has no report.
        Unsaved: If the page cannot be written.
    """
    parts: list[str] = []
    listed: list[str] = []
    others = 0
    for path in sorted(folder.rglob("*.json")):
        try:
            report = Report.load(path)
        except ValueError:
            others += 1
            continue
        number = len(listed) + 1
        title = html.escape(report.title)
        listed.append(f"<li><a href='#r{number}'>{title}</a> · {html.escape(report.label)}</li>")
        parts += [f"<h2 id='r{number}'>{title}</h2>", *_parts(report)]
    if not listed:
        raise ValueError(f"there is no saved report in {folder}")
    left = f"<p class='quiet'>JSON files that are no reports: {others}.</p>" if others else ""
    name = folder.absolute().name
    head = [f"<h1>{html.escape(name)}</h1>", f"<ol>{''.join(listed)}</ol>{left}"]
    body = document(name, [*head, *parts])
    try:
        return oddrank.files.write(folder / PAGE, body.encode())
    except OSError as error:
        raise Unsaved(f"cannot write {folder / PAGE}: {error.strerror or error}") from error


def _parts(report: Report) -> list[str]:
    parts = [f"<p class='quiet'>{html.escape(report.label)}</p>"]
    if report.view:
        try:
            figure = report.figure()
            parts.append(picture(figure, getattr(figure, "summary", "") or report.title))
        except (ValueError, TypeError, KeyError) as error:  # it needs to be told more, or is an older report
            parts.append(f"<p class='quiet'>No figure: {html.escape(str(error))}</p>")
    try:
        parts += program_source.parts(
            program_source.recorded(report.tables, str(report.provenance.get("torch", "")))
        )
    except ValueError as error:  # of another version
        parts.append(f"<p class='quiet'>No source: {html.escape(str(error))}</p>")
    if next(iter(report.tables), "") not in rows.KEPT:  # what one rank recorded has no table for a reader
        parts.append(table(report.frame))
    for said in (report.verdicts, report.notes):
        parts.append(
            "<ul>" + "".join(f"<li>{html.escape(str(one))}</li>" for one in said) + "</ul>" if said else ""
        )
    about = json.dumps(report.provenance, indent=1, ensure_ascii=False, default=str)
    return [*parts, f"<details><summary>Provenance</summary><pre>{html.escape(about)}</pre></details>"]
