"""data/facts.toml: complete, well formed, and every quote of the sources stands in it once."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from labkit import files
from ledger.facts import FILE, LISTS, load, parse
from ledger.trials import TRIALS

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
[sources.doc]
title = "A document"
[[fact]]
id = "breaks.one"
says = "Something is so."
lesson = "04"
do = "Do it."
said = [{source = "doc", section = "First", words = "It is so."}]
[[advice]]
source = "doc"
section = "Second"
words = "Do it."
why = "Advice."
see = "README.md"
"""


def test_a_quote_takes_its_title_from_its_source():
    facts = parse(GOOD)
    (fact,) = facts.facts
    assert (fact.topic, fact.said[0].source, fact.needs) == ("breaks", "A document", ())
    assert facts.others["advice"][0].why == "Advice."


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "A document"', "", "source 'doc': it has no title"),
        ('id = "breaks.one"', "", "fact number 1: it has no id"),
        ('says = "Something is so."', "", "fact 'breaks.one': it has no says"),
        ('lesson = "04"', 'lesson = " "', "fact 'breaks.one': it has no lesson"),
        ('do = "Do it."', "", "fact 'breaks.one': it has no do"),
        ('do = "Do it."', 'do = "Do it."\nneeds = ["tpu"]', "it cannot need 'tpu': there are 'gpu'"),
        ('do = "Do it."', 'do = "Do it."\nnote = "x"', "there is no field 'note'"),
        (
            'said = [{source = "doc"',
            'said = [{source = "other"',
            "no source has the key 'other': there are doc",
        ),
        ('section = "First", ', "", "fact 'breaks.one': a quote of 'doc' has no section"),
        ('why = "Advice."', "", "advice number 1: a quote of 'doc' has no why"),
        ('see = "README.md"', 'see = "README.md"\nat = "x"', "a quote has no field 'at'"),
    ],
)
def test_a_rule_that_is_broken_is_named_with_its_fact(old, new, says):
    assert old in GOOD
    with pytest.raises(ValueError, match=re.escape(says)):
        parse(GOOD.replace(old, new, 1))


def test_a_fact_has_a_check_and_a_check_a_fact():
    parse(GOOD, {"breaks.one"})
    with pytest.raises(ValueError, match=re.escape("ledger/trials/breaks.py has no trial of this name")):
        parse(GOOD, set())
    with pytest.raises(ValueError, match="trial 'breaks.two': no fact has this id"):
        parse(GOOD, {"breaks.one", "breaks.two"})
    twice = GOOD.replace("[[advice]]", GOOD[GOOD.index("[[fact]]") : GOOD.index("[[advice]]")] + "[[advice]]")
    with pytest.raises(ValueError, match="fact 'breaks.one': this id stands there twice"):
        parse(twice)


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path):
    with pytest.raises(ValueError, match="cannot read the facts in .*none.toml"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(ValueError, match="bad.toml is not TOML"):
        load(tmp_path / "bad.toml")


FACTS = load(trials=TRIALS)


def test_every_fact_belongs_to_a_lesson():
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


def test_the_facts_are_read_from_the_checkout():
    assert FILE == ROOT / "data/facts.toml"
