"""The facts, data/facts.toml: read, and refused where one breaks a rule."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from labkit import files

__all__ = ["LISTS", "NEEDS", "Fact", "Facts", "Quote", "load", "parse"]

FILE = files.ours("data/facts.toml")
# what a trial may need: how many GPUs, and how to say so
NEEDS = {"gpu": (1, "a GPU"), "2 gpus": (2, "2 GPUs"), "nvlink": (2, "2 GPUs joined by NVLink")}
# the quotes that are no fact of PyTorch: figures of somebody's machines, advice, and systems of their own
LISTS = ("figure", "advice", "system")
FIELDS = {*"id says news yes lesson do link needs said".split()}
# what a yes says of a fact that differs between versions
KINDS = ("works", "fails", "numbers", "behaves")
QUOTE = {*"source section words why see".split()}


@dataclass(frozen=True)
class Quote:
    """What a source says.

    Args:
        source: title of the document.
        section: the heading that it stands under.
        words: word for word, but for its Markdown.
        why: of a quote that is no fact: why it is none.
        see: of a quote that is no fact: the file of this repository that has it, or says more; with '#heading'.
    """

    source: str
    section: str
    words: str
    why: str = ""
    see: str = ""


@dataclass(frozen=True)
class Fact:
    """One fact of PyTorch.

    Args:
        id: its topic and name, such as 'breaks.disabled-collective'; its trial has the same name.
        says: the fact in one sentence, with the condition under which it was measured.
        lesson: the first two or three characters of the notebook where a reader meets it, such as '04'.
        do: what to do with it.
        link: where torch says or changed it, or ''.
        needs: names in NEEDS.
        said: what the sources say of it.
        yes: what a yes means for a job, a name in KINDS: something works; something fails, or is wrong; numbers are
            those that the sentence says; something behaves so, which is neither good nor bad. '' where no version
            differs.
        news: of a fact that differs on the newest torch: the same in half a line, for README; else ''.
    """

    id: str
    says: str
    lesson: str
    do: str
    link: str = ""
    needs: tuple[str, ...] = ()
    said: tuple[Quote, ...] = ()
    yes: str = ""
    news: str = ""

    @property
    def topic(self) -> str:
        """The first part of its id: the module of its trial in `ledger/trials/`."""
        return self.id.partition(".")[0]

    def missing(self, gpus: int) -> str:
        """What a machine with so many GPUs lacks for the trial; '' for nothing.

        >>> Fact("a.b", "It is so.", "04", "", needs=("gpu",)).missing(0)
        'a GPU'
        """
        return " and ".join(words for name in self.needs for least, words in [NEEDS[name]] if gpus < least)


@dataclass(frozen=True)
class Facts:
    """All facts in order, and the quotes that are none, by the name of their list.

    Args:
        facts: the facts.
        sources: title, date and address of each source by its key.
        others: for each name in LISTS its quotes.
    """

    facts: tuple[Fact, ...]
    sources: dict[str, dict[str, str]]
    others: dict[str, tuple[Quote, ...]]

    def choose(self, lesson: str | None = None, only: Collection[str] = ()) -> tuple[Fact, ...]:
        """Select facts.

        Args:
            lesson: such as '04'; None for all.
            only: ids; 'breaks.*' matches several. Empty for all.

        Returns:
            The facts.

        Raises:
            ValueError: a lesson or an id matches nothing.

        >>> len(load().choose("04")) > 2
        True
        """
        chosen = self.facts
        if lesson is not None:
            chosen = tuple(fact for fact in chosen if fact.lesson == lesson.partition("_")[0])
            if not chosen:
                there = ", ".join(sorted({fact.lesson for fact in self.facts}))
                raise ValueError(f"no fact belongs to a lesson {lesson!r}: there are {there}")
        for pattern in only:
            if not any(fnmatchcase(fact.id, pattern) for fact in chosen):
                where = f" of lesson {lesson!r}" if lesson else ""
                raise ValueError(f"no fact{where} has the id {pattern!r}: data/facts.toml has all ids")
        if only:
            chosen = tuple(fact for fact in chosen if any(fnmatchcase(fact.id, name) for name in only))
        return chosen


def load(path: str | Path | None = None, trials: Collection[str] | None = None) -> Facts:
    """Read the facts.

    Args:
        path: by default data/facts.toml of this checkout.
        trials: the names of all trials; None leaves them out of the reading.

    Returns:
        The facts.

    Raises:
        ValueError: the file is missing, or a fact breaks a rule; the message names both.

    >>> len(load().facts) > 100
    True
    """
    file = Path(path) if path is not None else FILE
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read the facts in {file}: {error.strerror or error}") from error
    try:
        return parse(text, trials)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file.name} is not TOML: {error}") from error


def parse(text: str, trials: Collection[str] | None = None) -> Facts:
    """Parse the facts in a TOML text; see `load`.

    >>> parse("").facts
    ()
    """
    body = tomllib.loads(text)
    sources = body.get("sources", {})
    for key, source in sources.items():
        if not source.get("title"):
            raise ValueError(f"source {key!r}: it has no title")
    found: dict[str, Fact] = {}
    for number, entry in enumerate(body.get("fact", []), 1):
        fact = _fact(entry, number, sources)
        if fact.id in found:
            raise ValueError(f"fact {fact.id!r}: this id stands there twice")
        if trials is not None and fact.id not in trials:
            raise ValueError(f"fact {fact.id!r}: ledger/trials/{fact.topic}.py has no trial of this name")
        found[fact.id] = fact
    for name in sorted(set(trials or ()) - set(found)):
        raise ValueError(f"trial {name!r}: no fact has this id")
    others = {
        name: tuple(
            _quote(entry, sources, f"{name} number {n}", True)
            for n, entry in enumerate(body.get(name, []), 1)
        )
        for name in LISTS
    }
    return Facts(tuple(found.values()), sources, others)


def _fact(entry: Mapping[str, Any], number: int, sources: Mapping[str, Any]) -> Fact:
    who = f"fact {entry['id']!r}" if entry.get("id") else f"fact number {number}"
    for name in ("id", "says", "lesson", "do"):
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise ValueError(f"{who}: it has no {name}")
    if unknown := sorted(set(entry) - FIELDS):
        raise ValueError(f"{who}: there is no field {unknown[0]!r}: there are {', '.join(sorted(FIELDS))}")
    for need in entry.get("needs", []):
        if need not in NEEDS:
            raise ValueError(f"{who}: it cannot need {need!r}: there are {', '.join(map(repr, NEEDS))}")
    if entry.get("yes", "works") not in KINDS:
        raise ValueError(f"{who}: its yes cannot be {entry['yes']!r}: there are {', '.join(KINDS)}")
    said = tuple(_quote(quote, sources, who) for quote in entry.get("said", []))
    return Fact(**{**entry, "needs": tuple(entry.get("needs", [])), "said": said})


def _quote(entry: Mapping[str, Any], sources: Mapping[str, Any], who: str, other: bool = False) -> Quote:
    if entry.get("source") not in sources:
        key, known = entry.get("source"), ", ".join(sources) or "none"
        raise ValueError(f"{who}: no source has the key {key!r}: there are {known}")
    for name in ("section", "words", *(("why", "see") if other else ())):
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise ValueError(f"{who}: a quote of {entry['source']!r} has no {name}")
    if unknown := sorted(set(entry) - QUOTE):
        raise ValueError(f"{who}: a quote has no field {unknown[0]!r}: there are {', '.join(sorted(QUOTE))}")
    return Quote(**{**entry, "source": sources[entry["source"]]["title"]})
