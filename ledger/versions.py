"""What was recorded on each version of torch, and the word that follows for each fact."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import __version__, files, hardware
from labkit.report import Report, provenance
from ledger.facts import Facts
from ledger.run import CANNOT_TELL, NO, YES, Answer, answer
from ledger.trials import TRIALS

__all__ = [
    "MADE",
    "answers",
    "differing",
    "effect",
    "home",
    "load",
    "matrix",
    "news",
    "nearest",
    "records",
    "rejudged",
    "report",
    "save",
    "short",
    "text",
    "word",
]

ROOT = f"{Path(__file__).resolve().parents[1]}/"  # errors name files in it, and a record names no place on a machine
MADE = ("hardware", "torch", "commit", "date")
COLUMNS = [
    "id",
    "lesson",
    "says",
    "answer",
    "measured",
    "failed",
    "missing",
    "seconds",
    "seen",
    "counter",
    *MADE,
]
NOT_RUN = "not run"
NAME = "facts"
ON_A_GPU = "facts-gpu.json"  # beside facts.json: what a machine without a GPU cannot tell
TITLE = "The ledger of facts"
LABEL = "gloo, shm, host only · cpu"


def home() -> Path:
    """The folder of the recorded runs: that of the checkout; of an installed labkit, the reader's own data folder."""
    ours = files.ours("data/recorded")
    return ours if ours.parent.parent.joinpath("pyproject.toml").is_file() else files.home()


def _key(version: str) -> tuple[int, ...]:
    # a nightly build has more after its three numbers
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def records(folder: Path | None = None) -> dict[str, Path]:
    """Find the recorded run on each version of torch.

    Args:
        folder: by default that of `home`, and what comes with labkit.

    Returns:
        Paths by version, the oldest first.

    >>> "2.13.0" in records()
    True
    """
    found = {}
    for root in [files.ours("data/recorded"), home()] if folder is None else [folder]:
        for path in root.glob(f"torch-*/{NAME}.json"):
            version = path.parent.name.removeprefix("torch-")
            if version.replace(".", "").isdigit():
                found[version] = path
    return {version: found[version] for version in sorted(found, key=_key)}


def nearest(torch: str, folder: Path | None = None) -> str | None:
    """The recorded version that is this torch, else the newest before it, else the oldest there is.

    >>> nearest("2.13.0+cpu")
    '2.13.0'
    """
    there, mine = records(folder), _key(torch.partition("+")[0])
    before = [version for version in there if _key(version) <= mine]
    return before[-1] if before else next(iter(there), None)


def report(found: Iterable[Answer]) -> Report:
    """Make a Report of answers: a row for each fact, with what its probe saw as JSON, and on what it was made.

    Args:
        found: the answers.

    Returns:
        The report.
    """
    where = provenance()
    made = {name: str(where.get(name, "")) for name in MADE}
    made["commit"] = made["commit"] or f"version {__version__}"
    rows = [
        {
            "id": one.fact.id,
            "lesson": one.fact.lesson,
            "says": one.fact.says,
            **{
                name: getattr(one, name).replace(ROOT, "")
                for name in ("answer", "measured", "failed", "missing")
            },
            "seconds": one.seconds,
            "seen": _text(one.seen),
            "counter": _text(one.counter),
            **made,
        }
        for one in found
    ]
    label = f"{LABEL}; cuda" if hardware.gpus() else LABEL
    return Report(NAME, TITLE, label, {"facts": pd.DataFrame(rows, columns=COLUMNS)}, [], where)


def _text(seen: Any) -> str:
    return "" if seen is None else json.dumps(seen, ensure_ascii=False).replace(ROOT, "")


def load(path: Path) -> Report:
    """Load kept or recorded answers.

    Raises:
        ValueError: the file is damaged, or holds something else; the message names it.
    """
    found = Report.load(path)
    if "facts" not in found.tables:
        raise ValueError(f"{path} holds no answers of the ledger: its tables are {', '.join(found.tables)}")
    return found


def save(found: Iterable[Answer], path: Path) -> Report:
    """Keep answers: they replace those of the same facts in the file, and all others stay.

    Args:
        found: the answers; those for want of hardware are not kept, since they cost nothing to tell again.
        path: of the file, `ledger.json` in some folder.

    Returns:
        What the file holds now.

    Raises:
        ValueError: the file is damaged.
        Unsaved: it cannot be written.
    """
    new = report(one for one in found if one.answer != CANNOT_TELL or one.seen is not None)
    rows = new.frame
    if path.exists():
        old = load(path).frame
        kept = old[~old["id"].isin(rows["id"])]
        rows = pd.concat([kept, rows], ignore_index=True) if len(kept) else rows
    whole = Report(new.name, TITLE, new.label, {"facts": rows}, [], new.provenance)
    whole.save(path.parent)
    return whole


def rejudged(facts: Facts, found: Report) -> dict[str, Answer]:
    """Judge recorded answers anew, by today's judges: what counts are those of facts that read the same today.

    Args:
        facts: all facts.
        found: recorded answers.

    Returns:
        Answers by id. An answer whose record holds no data (a GPU's, from before its probe was kept) stays as it is.
    """
    now = {fact.id: fact for fact in facts.facts}
    there = {}
    for row in found.frame.to_dict("records"):
        fact = now.get(row["id"])
        if fact is None or fact.says != row["says"]:
            continue
        if not row["seen"]:
            kept = {name: row[name] for name in ("answer", "measured", "failed", "missing", "seconds")}
            there[fact.id] = Answer(fact, **kept)
            continue
        counter = json.loads(row["counter"]) if row["counter"] else None
        told = answer(fact, TRIALS[fact.id], json.loads(row["seen"]), counter)
        there[fact.id] = replace(told, seconds=row["seconds"])
    return there


def answers(facts: Facts, folder: Path | None = None) -> dict[str, dict[str, Answer]]:
    """Load what counts of the recorded answers of each version, a GPU's included; the oldest version first.

    Args:
        facts: all facts.
        folder: see `records`.

    Returns:
        Answers by version and id.
    """
    return {version: _told(facts, path) for version, path in records(folder).items()}


def _told(facts: Facts, path: Path) -> dict[str, Answer]:
    beside = path.with_name(ON_A_GPU)
    return (rejudged(facts, load(beside)) if beside.exists() else {}) | rejudged(facts, load(path))


def word(told: Mapping[str, str]) -> str:
    """The word for what the versions answer: since when it is so, or until when.

    Args:
        told: yes, no or another answer by version, the oldest first. Only yes and no count.

    Returns:
        'always', 'since X', 'until X', 'only in X', 'not in X' for one version among others, 'not in A-Z' for all, or
        'cannot tell here'. Versions that answered neither are named after it.

    >>> [word(dict(zip("ABC", told))) for told in (["yes"] * 3, ["no", "yes", "yes"], ["yes", "no", "no"])]
    ['always', 'since B', 'until A']
    >>> [word(dict(zip("ABC", told))) for told in (["no", "yes", "no"], ["yes", "no", "yes"], ["no"] * 3)]
    ['only in B', 'not in B', 'not in A-C']
    >>> [word(dict(zip("ABC", told))) for told in (["error", "yes", "yes"], ["error"] * 3)]
    ['always (A not known)', 'cannot tell here']
    """
    known = {version: said == YES for version, said in told.items() if said in (YES, NO)}
    if not known:
        return "cannot tell here"
    unknown = [version for version in told if version not in known]
    return _word(known) + f" ({', '.join(unknown)} not known)" * bool(unknown)


def _word(known: Mapping[str, bool]) -> str:
    yes, no = [v for v in known if known[v]], [v for v in known if not known[v]]
    if not no:
        return "always"
    if not yes:
        return f"not in {no[0]}-{no[-1]}" if len(no) > 1 else f"not in {no[0]}"
    order = list(known)
    changes = [v for before, v in zip(order, order[1:], strict=False) if known[before] != known[v]]
    if len(changes) == 1:
        return f"since {changes[0]}" if known[changes[0]] else f"until {yes[-1]}"
    return f"only in {', '.join(yes)}" if len(yes) <= len(no) else f"not in {', '.join(no)}"


def matrix(facts: Facts, folder: Path | None = None) -> pd.DataFrame:
    """The answer of every recorded version to every fact, and the word.

    Args:
        facts: all facts.
        folder: see `records`.

    Returns:
        A row for each fact by its id, with a column for each version, then `word`.
    """
    there = answers(facts, folder)
    rows = {}
    for fact in facts.facts:
        told = {v: found[fact.id].answer if fact.id in found else NOT_RUN for v, found in there.items()}
        rows[fact.id] = {**told, "word": word({short(v): said for v, said in told.items()})}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("fact")


def short(version: str) -> str:
    """A version without its last 0: '2.13' for '2.13.0'.

    >>> short("2.13.0"), short("2.14.1")
    ('2.13', '2.14.1')
    """
    return re.sub(r"^(\d+\.\d+)\.0$", r"\1", version)


def news(facts: Facts, folder: Path | None = None) -> pd.DataFrame:
    """The facts to which two recorded versions answer differently, each once.

    Args:
        facts: all facts.
        folder: see `records`.

    Returns:
        A row for each: fact, word, says, news, do, link, lesson.
    """
    told = matrix(facts, folder)
    by_id = {fact.id: fact for fact in facts.facts}
    rows = [
        {
            "fact": name,
            "word": said,
            **{key: getattr(by_id[name], key) for key in ("says", "news", "do", "link", "lesson")},
        }
        for name, said in told["word"].items()
        if re.match("since|until|only in", said) or (said.startswith("not in") and YES in set(told.loc[name]))
    ]
    return pd.DataFrame(rows, columns=["fact", "word", "says", "news", "do", "link", "lesson"])


EFFECTS = ("breaks", "other numbers", "other behaviour", "works now", "new")


def effect(before: Answer, after: Answer) -> str:
    """What it means for a job that a newer torch answers otherwise: a name in EFFECTS, the most urgent first.

    Args:
        before, after: a yes and a no of one fact, in either order.

    Returns:
        'new' where something works that the older torch does not have; else what follows from the fact's `yes`.

    >>> from ledger.facts import Fact
    >>> one = Fact("a.b", "The sum is 4.", "04", "Add.", yes="fails")
    >>> effect(Answer(one, "no"), Answer(one, "yes"))
    'breaks'
    """
    kind = after.fact.yes
    if kind == "works" and "not there" in (before.seen or {}):
        return "new"
    if kind in ("works", "fails"):
        return "works now" if (after.answer == YES) == (kind == "works") else "breaks"
    return "other numbers" if kind == "numbers" else "other behaviour"


def differing(a: Mapping[str, Answer], b: Mapping[str, Answer]) -> pd.DataFrame:
    """The facts to which one version answers yes and another no, with both measurements, the most urgent first.

    Args:
        a, b: answers by id, of the older and of the newer version; see `rejudged`.

    Returns:
        A row for each fact: id, effect, lesson, says, do, then answer and measurement of each.
    """
    rows = []
    for name in a:
        if name in b and {a[name].answer, b[name].answer} == {YES, NO}:
            fact = a[name].fact
            row: dict[str, Any] = {"id": name, "effect": effect(a[name], b[name]), "lesson": fact.lesson}
            row |= {"says": fact.says, "do": fact.do}
            for side, one in (("a", a[name]), ("b", b[name])):
                row |= {f"answer_{side}": one.answer, f"measured_{side}": one.said()}
            rows.append(row)
    columns = "id effect lesson says do answer_a measured_a answer_b measured_b".split()
    rows.sort(key=lambda row: EFFECTS.index(row["effect"]))
    return pd.DataFrame(rows, columns=columns)


def text(facts: Facts, pair: Sequence[str], folder: Path | None = None, width: int = 150) -> str:
    """The facts that differ between two recorded versions, as a text.

    Args:
        facts: all facts.
        pair: the two versions.
        folder: see `records`.
        width: of a line, in characters.

    Raises:
        ValueError: one of them is not recorded.
    """
    there = records(folder)
    for version in pair:
        if version not in there:
            known = ", ".join(there) or "none"
            raise ValueError(
                f"no ledger is recorded on torch {version} (there is: {known}); "
                f"`labkit ledger --torch {version}` makes one"
            )
    both = [_told(facts, there[version]) for version in pair]
    lines = []
    rows = differing(*both)
    for row in rows.to_dict("records"):
        lines.append(f"{row['effect']}: {row['id']}  (lesson {row['lesson']})")
        lines += textwrap.wrap(row["says"], width, initial_indent="  ", subsequent_indent="  ")
        for version, side in zip(pair, "ab", strict=True):
            start = f"  {version:<8}{row[f'answer_{side}']:<12}  "
            rest = row[f"measured_{side}"] or "-"
            lines += textwrap.wrap(rest, width, initial_indent=start, subsequent_indent=" " * len(start))
        lines += textwrap.wrap(f"do: {row['do']}", width, initial_indent="  ", subsequent_indent="      ")
        lines.append("")
    answered = [{name for name, one in told.items() if one.answer in (YES, NO)} for told in both]
    if unknown := sorted((set(both[0]) | set(both[1])) - (answered[0] & answered[1])):
        lines += textwrap.wrap(
            f"not known on one of them: {', '.join(unknown)}", width, subsequent_indent="  "
        )
        lines.append("")
    made = "; ".join(f"torch {version}: {_made(there[version])}" for version in pair)
    return "\n".join([*lines, f"{len(rows)} of {len(answered[0] & answered[1])} facts differ ({made})"])


def _made(path: Path) -> str:
    """On what and when the answers were recorded."""
    where = [load(one).provenance for one in (path, path.with_name(ON_A_GPU)) if one.exists()]
    return ", ".join(f"{one.get('hardware', '?')} on {str(one.get('date', '?'))[:10]}" for one in where)
