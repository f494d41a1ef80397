"""`labkit ledger`: the facts on this torch, on another one, and what differs between two."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from oddrank.files import Unsaved, writable

from labkit import files
from labkit.report import provenance
from ledger import environments, versions
from ledger.facts import Fact, Facts, load
from ledger.run import ANSWERS, NO, YES, Answer, run
from ledger.trials import TRIALS

__all__ = ["ledger", "table"]


def ledger(given: argparse.Namespace) -> int:
    """Run `labkit ledger`.

    Raises:
        ValueError: options that do not go together, an unknown fact, lesson or version.
    """
    facts = load(trials=TRIALS)
    chosen = facts.choose(given.lesson, given.only)
    if given.torch is not None or given.diff is not None:
        return _other_torch(given, facts)
    if given.again and given.save is None:
        raise ValueError("--again goes with --save: without it nothing is kept, and everything is run")
    talk = None if given.json else lambda name: print(f"running {name} ...", file=sys.stderr, flush=True)
    unsaved: list[Unsaved] = []
    kept: dict[str, Answer] = {}
    each = None
    if given.save is not None:
        path = (files.home() if given.save is True else given.save) / f"{versions.NAME}.json"
        writable(path.parent, path.name)
        kept = {} if given.again else _usable(facts, path)

        def each(one: Answer) -> None:
            try:
                versions.save([one], path)
            except Unsaved as error:
                unsaved.append(error)

    found = run((fact for fact in chosen if fact.id not in kept), talk=talk, each=each)
    new = {one.fact.id: one for one in found}
    whole = [kept.get(fact.id) or new[fact.id] for fact in chosen]
    if given.json:
        said = {"provenance": provenance(), "facts": [asdict(one) for one in whole]}
        print(json.dumps(said, indent=1))
    else:
        print(table(whole, facts, shutil.get_terminal_size((150, 40)).columns))
    if unsaved:
        raise unsaved[0]
    if given.save is not None:
        there = sum(fact.id in kept for fact in chosen)
        print(f"saved: {path} (kept from before: {there} facts)", file=sys.stderr)
    return 0


def _usable(facts: Facts, path: Path) -> dict[str, Answer]:
    """The kept answers that count here and now: of this torch, commit and hardware, and no error."""
    if not path.exists():
        return {}
    now, there = provenance(), versions.load(path)
    if "+" in str(now.get("commit", "")):  # a tree with changes is not the commit
        return {}
    rows = there.frame
    same = [all(str(row[key]) == str(now.get(key, "")) for key in ("hardware", "torch", "commit"))
            for row in rows.to_dict("records")]  # fmt: skip
    told = versions.rejudged(facts, replace(there, tables={"facts": rows[same]}))
    return {name: one for name, one in told.items() if one.answer in (YES, NO)}


def table(found: Iterable[Answer], facts: Facts, width: int = 150) -> str:
    """The answers as a text, a paragraph for each fact: answer, since when, what was measured, what to do.

    Args:
        found: the answers.
        facts: all facts.
        width: of a line, in characters.

    Returns:
        The text, with the number of each answer at its end.
    """
    told = versions.matrix(facts)["word"]
    lines, found = [], list(found)
    for one in sorted(found, key=lambda one: one.fact.lesson):
        fact: Fact = one.fact
        lines.append(f"{one.answer:<12}{fact.id}  (lesson {fact.lesson}; {told[fact.id]})")
        for text in (
            fact.says,
            f"measured: {one.said() or '-'}",
            f"do: {fact.do} {fact.link}".strip(),
        ):
            lines += textwrap.wrap(text, width, initial_indent=" " * 12, subsequent_indent=" " * 14)
        lines.append("")
    count = Counter(one.answer for one in found)
    lines.append("  ".join(f"{name}: {count[name]}" for name in ANSWERS))
    where = provenance()
    lines.append(f"torch {torch.__version__}, {where.get('hardware', '?')}, {where['date']}")
    return "\n".join(lines)


def _other_torch(given: argparse.Namespace, facts: Facts) -> int:
    other = None if given.torch is None else environments.numbers(given.torch)
    pair = [environments.numbers(version) for version in given.diff or []] + ([other] if other else [])
    if given.save is not None:
        raise ValueError(
            f"--save goes without --torch and --diff: these have their answers in {versions.home()}"
        )
    if given.diff is not None and len(pair) != 2:
        raise ValueError(
            "--diff compares two torch versions: two with it, or one with it and one with --torch"
        )
    if other:
        asked = ["--lesson", given.lesson] if given.lesson else []
        asked += ["--only", *given.only] if given.only else []
        asked += [f"--{name}" for name in ("json", "again") if getattr(given, name)]
        for version in pair[:-1]:
            versions.text(
                facts, (version, version)
            )  # an unknown one is said before the run, and not after it
        into = versions.home() / f"torch-{other}"
        print(f"uv gets torch {other}: some minutes the first time", file=sys.stderr, flush=True)
        if status := environments.run(other, asked, into):
            return status
    if given.diff is not None:
        print(versions.text(facts, pair, width=shutil.get_terminal_size((150, 40)).columns))
    return 0
