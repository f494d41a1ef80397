"""The map of the lessons, made from what each lesson says of itself; README's news of torch, docs/versions.md and
docs/experiments.md; the service of lesson 18 as it is delivered, which its readers fix in the notebook.

    python -m tools.course            write the map into 00_start_here and the README, the tables, and the page
    python -m tools.course --check    only say where they are older than the lessons and the recorded ledgers

A lesson's first cell is its title and three paragraphs:

    # 04 · The graph-break cliff

    **The question.** How can one decorator make a compiled model slower than eager?

    **Needs.** 35 minutes, about 4 of them to run. Two ranks; a GPU is welcome and not needed.

    **Covers.** Topic 11 (experiments 1, 2 and 4) and topic 12 (experiment 1).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit import files
from labkit.lessons import cells
from ledger import versions
from ledger.facts import load
from tools import experiments
from tools.fit import MAP, ROOT

__all__ = ["FRONT", "Lesson", "lessons", "parse", "stale", "table", "write"]

FRONT, DELIVERED = "00_start_here", Path("data/delivered/18_repair_it.json")
VERSIONS = "docs/versions.md"
FORM = "a lesson's first cell has a title, **The question.**, **Needs.** N minutes ... . hardware, and **Covers.**"


@dataclass(frozen=True)
class Lesson:
    """What a lesson asks, what it needs, and which sections of the sources it covers."""

    name: str
    title: str
    question: str
    minutes: int
    running: int | None  # of these minutes
    optional: bool  # no later lesson needs it
    hardware: str
    sources: str


def lessons(root: Path = ROOT) -> list[Lesson]:
    """The lessons of a checkout, in order. Raises ValueError naming the lesson whose first cell is not in form."""
    found = []
    for path in sorted((root / "notebooks").glob("[0-9][0-9]*_*.ipynb")):
        first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
        found.append(parse(path.stem, "".join(first["source"])))
    return found


def parse(name: str, text: str) -> Lesson:
    """Read a lesson's row from the text of its first cell.

    Raises ValueError naming the part that is missing.

    >>> needs = "**Needs.** 20 minutes, 3 of them to run. Two cores."
    >>> text = f"# 05 · Trap\\n\\n**The question.** Why?\\n\\n{needs}\\n\\n**Covers.** Topic 11."
    >>> lesson = parse("05_trap", text)
    >>> lesson.minutes, lesson.running, lesson.hardware
    (20, 3, 'Two cores')
    """
    title = re.match(r"# (.+)", text)
    if not title:
        raise ValueError(f"{name}: no title: {FORM}")
    parts = {}
    for part in ("The question", "Needs", "Covers"):
        paragraph = re.search(rf"^\*\*{part}\.\*\*\s+(.+?)(?:\n\s*\n|\Z)", text, re.DOTALL | re.MULTILINE)
        if not paragraph:
            raise ValueError(f"{name}: no paragraph **{part}.**: {FORM}")
        parts[part] = " ".join(paragraph[1].split())
    needs = re.match(r"(?:About )?(\d+) minutes?\b.*?\.\s+(?=[A-Z])(.+)", parts["Needs"])
    if not needs:
        said = parts["Needs"]
        raise ValueError(f"{name}: **Needs.** begins with minutes as a number, then hardware, got {said!r}")
    running = re.search(r"\b(\d+) of them to run", parts["Needs"])
    return Lesson(
        name,
        title[1].strip(),
        parts["The question"],
        int(needs[1]),
        int(running[1]) if running else None,
        " minutes, optional" in parts["Needs"],
        needs[2].removesuffix("."),
        parts["Covers"].removesuffix("."),
    )


def table(rows: Sequence[Lesson]) -> str:
    """The map as a Markdown table, each lesson a link to its notebook beside the one that holds the map.

    Its last row adds up the minutes of the lessons that are not optional.
    """
    lines = ["| lesson | the question | minutes | to run |", "|---|---|---|---|"]
    for row in rows:
        question = row.question.replace("|", r"\|")
        lines.append(
            f"| [{row.title}]({row.name}.ipynb) | {question}{' *Optional.*' if row.optional else ''} "
            f"| {row.minutes} | {row.running or ''} |"
        )
    needed = [row for row in rows if not row.optional]
    minutes, running = sum(row.minutes for row in needed), sum(row.running or 0 for row in needed)
    lines.append(f"| *All but the optional ones* | | {minutes:,} | {running} |")
    return "\n".join(lines)


def write(root: Path = ROOT) -> list[Path]:
    """Bring the map in 00_start_here and the README up to date; returns the files that changed.

    Raises ValueError where a lesson's first cell is not in form, or a file has no place for the map.
    """
    changed = []
    for path, text in _renewed(root).items():
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def stale(root: Path = ROOT) -> list[str]:
    """The files whose map says something else than the lessons do; empty when all agree."""
    renewed = _renewed(root).items()
    return [path.name for path, text in renewed if text != path.read_text(encoding="utf-8")]


def _renewed(root: Path) -> dict[Path, str]:
    """What the files with a map should hold."""
    rows = lessons(root)
    front, readme = root / "notebooks" / f"{FRONT}.ipynb", root / "README.md"
    text = _with_list(readme.read_text(encoding="utf-8"), rows)
    renewed = {front: _with_map(front, table(rows)), readme: _with_news(text)}
    if (kept := root / DELIVERED).exists():
        delivered = {label: text.split("\n") for label, text in cells(DELIVERED.stem).items()}
        renewed[kept] = json.dumps(delivered, indent=1, ensure_ascii=False) + "\n"
    if (page := root / experiments.PAGE).exists():
        renewed[page] = experiments.page(root=root)
    if (page := root / VERSIONS).exists():
        renewed[page] = _with_versions(page.read_text(encoding="utf-8"))
    return renewed


def _with_map(path: Path, text: str) -> str:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    places = [cell for cell in notebook["cells"] if MAP in cell["metadata"].get("tags", ())]
    if len(places) != 1:
        raise ValueError(f"{path.name} needs one markdown cell with the tag {MAP!r}, found {len(places)}")
    # the table ends the cell; what stands above it is the author's
    above = "".join(places[0]["source"]).partition("| lesson |")[0]
    places[0]["source"] = (above + text).splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _with_list(readme: str, rows: Sequence[Lesson]) -> str:
    lines = ["| lesson | the question |", "|---|---|"]
    lines += [f"| [{row.name}](notebooks/{row.name}.ipynb) | {row.question} |" for row in rows]
    found = re.subn(
        r"^\| lesson \| the question \|\n(?:\|.*\n)+",
        lambda _: "\n".join(lines) + "\n",
        readme,
        flags=re.MULTILINE,
    )
    if found[1] != 1:
        raise ValueError(f"README.md needs one table '| lesson | the question |', found {found[1]}")
    return found[0]


def _with_news(readme: str) -> str:
    """The README with its table of what differs on the newest torch, where it has one.

    Raises ValueError naming a fact that has no `news`.
    """
    newest = [*versions.records()][-1].rpartition(".")[0]
    rows = []
    for row in versions.news(load()).to_dict("records"):
        if newest not in row["word"].partition(" (")[0]:
            continue
        if not row["news"]:
            raise ValueError(
                f"{row['fact']} differs on torch {newest}: give it `news`, half a line for README"
            )
        rows.append([row["word"], row["news"], _lesson(row["lesson"], "notebooks/")])
    return _with_table(readme, ["since", "the fact", "lesson"], rows)


def _with_versions(page: str) -> str:
    """The page with its table of the facts that differ between torch versions."""
    rows = []
    for row in versions.news(load()).to_dict("records"):
        do = row["do"] + (f" ([{_reference(row['link'])}]({row['link']}))" if row["link"] else "")
        rows.append(
            [row["word"], f"{row['says']} `{row['fact']}`", do, _lesson(row["lesson"], "../notebooks/")]
        )
    return _with_table(page, ["since when", "the fact", "what to do", "lesson"], rows)


def _lesson(number: str, folder: str) -> str:
    names = {files.number(path): path.name for path in files.lessons()}
    return f"[{number}]({folder}{names[number]})"


def _with_table(page: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A page with other rows in its table of this head; as it was where it has no such table."""
    first = f"| {' | '.join(head)} |"
    lines = [first, "|---" * len(head) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return re.sub(
        rf"^{re.escape(first)}\n(?:\|.*\n)+",
        lambda _: "\n".join(lines) + "\n",
        page,
        flags=re.MULTILINE,
    )


def _reference(link: str) -> str:
    """How a link is named: 'pytorch#184235' for a pull request or an issue of GitHub, else 'link'."""
    found = re.fullmatch(r"https://github.com/[^/]+/([^/]+)/(?:pull|issues)/(\d+)", link)
    return f"{found[1]}#{found[2]}" if found else "link"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 1 when a map is stale and only `--check` was asked for, or cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m tools.course", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    try:
        if parser.parse_args(arguments).check:
            found = stale()
            for name in found:
                print(f"{name}: what is generated in it is stale: `make map` writes it", file=sys.stderr)
            return bool(found)
        for path in write():
            print(f"{path.name}: written")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
