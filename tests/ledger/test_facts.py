"""data/facts.toml: every fact has a lesson, and every quote of the sources stands in one place."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from labkit import files
from ledger.facts import LISTS, load
from ledger.trials import TRIALS

ROOT = Path(__file__).resolve().parents[2]
FACTS = load()


def test_every_fact_has_a_trial_and_belongs_to_a_lesson():
    assert {fact.id for fact in FACTS.facts} == TRIALS.keys()
    lessons = {path.name.partition("_")[0] for path in files.lessons()}
    assert {fact.lesson for fact in FACTS.facts} <= lessons


def digest(words: str) -> str:
    return hashlib.sha256(" ".join(words.split()).encode()).hexdigest()[:12]


def test_every_quote_of_the_sources_stands_in_one_place():
    """tests/ledger/quotes.txt has a digest of each of the quotes that were taken from the five source documents."""
    wanted = (ROOT / "tests/ledger/quotes.txt").read_text().split()
    there = [digest(quote.words) for fact in FACTS.facts for quote in fact.said]
    there += [digest(quote.words) for name in LISTS for quote in FACTS.others[name]]
    assert len(there) == len(set(there)), "a quote stands in two places"
    assert sorted(there) == sorted(wanted)


@pytest.mark.parametrize("name", LISTS)
def test_a_quote_that_is_no_fact_names_a_file_that_is_there(name):
    for quote in FACTS.others[name]:
        path, _, heading = quote.see.partition("#")
        assert (ROOT / path).is_file(), f"{quote.words!r}: {quote.see}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.M)
            assert heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_the_figures_of_the_sources_stand_in_their_copies():
    for quote in FACTS.others["figure"]:
        assert quote.see.startswith("data/reference/")
        copied = re.findall(r"\d+(?:\.\d+)?", (ROOT / quote.see).read_text().replace(",", " "))
        said = re.findall(r"\d+(?:[.,]\d+)?", quote.words)
        assert not said or {number.replace(",", "") for number in said} & set(copied), quote.words


def test_a_choice_that_matches_nothing_is_refused():
    assert [fact.id for fact in FACTS.choose(only=[FACTS.facts[0].id])] == [FACTS.facts[0].id]
    with pytest.raises(ValueError, match="no fact belongs to a lesson '99'"):
        FACTS.choose("99")
    with pytest.raises(ValueError, match=r"no fact has the id 'no\.\*'"):
        FACTS.choose(only=["no.*"])
