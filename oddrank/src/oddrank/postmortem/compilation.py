"""What ranks compiled: a compile that is under way or was too long, and where caches or graphs differ between ranks."""

from __future__ import annotations

from datetime import datetime

from oddrank.postmortem.material import Material
from oddrank.postmortem.rows import Row, is_own
from oddrank.postmortem.sentences import Sentence, rank_names, rank_numbers, sentence

__all__ = ["another_graph", "caches", "graphs", "open_compile", "story", "under_way"]


def _seconds(one: str, other: str) -> float | None:
    """The time between two stamps of torch's logs, which have no year; None where one is of another form.

    >>> _seconds("1128 03:04:14.850000", "1128 03:04:20.10")
    5.25
    """
    try:
        begin, end = (datetime.strptime(f"2024{text}", "%Y%m%d %H:%M:%S.%f") for text in (one, other))
    except ValueError:
        return None
    return (end - begin).total_seconds()


def _compiles(material: Material, rank: int) -> list[tuple[Row, Row | None]]:
    """The compiles of a rank, each with its end, None where the material has none."""
    by_file: dict[str, list[Row]] = {}
    for row in material.of(rank, "begin", "traced", "end"):
        by_file.setdefault(row.file, []).append(row)
    found: list[tuple[Row, Row | None]] = []
    for rows in by_file.values():
        begun: dict[str, Row] = {}
        for row in rows:
            if row.kind == "begin":
                begun.setdefault(row.key, row)
            elif row.kind == "end" and row.key in begun:
                found.append((begun.pop(row.key), row))
        if rows[-1].kind == "begin":  # an earlier one without an end was given up
            found.append((begun[rows[-1].key], None))
    return found


def open_compile(material: Material, rank: int) -> Row | None:
    """The begin of the compile in which the log of a rank ends; of several sources the one that has a line."""
    compiles = _compiles(material, rank)
    ended = {
        begin.key for begin, end in compiles if end is not None
    }  # one source may end earlier than another
    pending = [begin for begin, end in compiles if end is None and begin.key not in ended]
    return max(pending, key=lambda row: any(is_own(frame.file) for frame in row.frames), default=None)


def under_way(begin: Row) -> Sentence:
    """The sentence of a compile without an end."""
    at = f" ({begin.where})" if begin.where else ""
    since = f" since {begin.time}" if begin.time else ""
    return sentence(f"compiling [{begin.key}]{at}{since}; the compile has no end in what is here", begin)


def story(material: Material, rank: int, others: list[int], timeout_ms: int) -> list[Sentence]:
    """In which compile a rank was, or spent more than the timeout, why, and what the others made of the same code."""
    compile_, sentences = _slow(material, rank, timeout_ms)
    if compile_ is None:
        return _alone(material, rank, others)
    if guards := [row for row in material.of(rank, "recompile") if row.key == compile_.key]:
        text = f"it compiled again because a guard failed: {guards[-1].text}"
        sentences.append(sentence(text, guards[-1]))
        alone = [r for r in others if material.of(r, "begin") and not _made(material, r, compile_.key)]
        if alone:
            text = f"ranks {rank_numbers(alone)} did not compile [{compile_.key}] at all, in what is here"
            sentences.append(sentence(text, *(material.of(r, "begin")[-1] for r in alone[:3])))
        return sentences
    for other in others:
        pair = next((p for p in _compiles(material, other) if p[0].key == compile_.key and p[1]), None)
        if pair and pair[1] and (seconds := _seconds(pair[0].time, pair[1].time)) is not None:
            text = f"rank {other} was through with [{compile_.key}] in {seconds:.1f} s"
            return [*sentences, sentence(text, pair[0], pair[1])]
    return sentences


def _slow(material: Material, rank: int, timeout_ms: int) -> tuple[Row | None, list[Sentence]]:
    """The open compile of a rank, or else those that took longer than the timeout; the last one, and the sentences."""
    if begin := open_compile(material, rank):
        return begin, [Sentence(f"rank {rank} was {under_way(begin).text}", (begin.cite,))]
    last, sentences = None, []
    for begin, end in _compiles(material, rank):
        seconds = _seconds(begin.time, end.time) if end else None
        if end and seconds and timeout_ms and seconds * 1000 >= timeout_ms:
            text = f"rank {rank} compiled [{begin.key}] {begin.where} for {seconds:.1f} s"
            sentences.append(sentence(f"{text}, and the timeout is {timeout_ms / 1000:g} s", begin, end))
            last = begin
    return last, sentences


def _alone(material: Material, rank: int, others: list[int]) -> list[Sentence]:
    """The last compile of a rank, where no other rank that has a log of compiles made it."""
    compiles = _compiles(material, rank)
    known = [other for other in others if material.of(other, "begin")]
    if not compiles or not known or any(_made(material, other, compiles[-1][0].key) for other in known):
        return []
    row = compiles[-1][0]
    text = f"rank {rank}'s last compile is [{row.key}] {row.where}, which {rank_names(known)} did not make"
    rows = (row, *(material.of(other, "begin")[-1] for other in known[:3]))
    return [sentence(f"{text}, in what is here", *rows)]


def _made(material: Material, rank: int, key: str) -> bool:
    return any(row.key == key for row in material.of(rank, "begin"))


def caches(material: Material, odd: list[int], others: list[int]) -> list[Sentence]:
    """Where some ranks took a graph from a cache and the odd ones did not, or the other way round."""
    words = {"hit": "took its code from a cache", "miss": "did not find it in a cache"}
    sentences = []
    for rank in odd:
        mine = {row.key: row for row in material.of(rank, "hit", "miss")}  # the last one of each compile
        for other in others:
            theirs = {row.key: row for row in material.of(other, "hit", "miss")}
            key = next((key for key in mine if key in theirs and mine[key].kind != theirs[key].kind), None)
            if key is not None:
                one, two = mine[key], theirs[key]
                text = f"for compile [{key}], rank {rank} {words[one.kind]}, rank {other} {words[two.kind]}"
                sentences.append(sentence(text, one, two))
                break
    return sentences


def _graphs(material: Material, rank: int) -> dict[str, Row]:
    """The last graph of each compile."""
    return {row.text: row for row in material.of(rank, "graph")}


def graphs(material: Material, odd: list[int], others: list[int]) -> list[Sentence]:
    """The first compile of which a rank has another graph than the others."""
    for rank in odd:
        mine = _graphs(material, rank)
        for other in others:
            for row in material.of(other, "graph"):
                if row.text in mine and mine[row.text].key != row.key:
                    text = f"ranks {rank} and {other} have different graphs of compile [{row.text}]"
                    return [sentence(text, mine[row.text], row)]
    return []


def another_graph(material: Material, rank: int, ranks: list[int]) -> Sentence | None:
    """Whether all others have the same graphs, and this rank has another one."""
    peers = {r: _graphs(material, r) for r in ranks if r != rank}
    for key, row in _graphs(material, rank).items():
        others = [theirs[key] for theirs in peers.values() if key in theirs]
        digests = {other.key for other in others}
        if len(others) == len(peers) > 1 and len(digests) == 1 and row.key not in digests:
            text = f"rank {rank} has another graph of compile [{key}] than {rank_names(peers)}"
            return sentence(f"{text}, which have the same one", row, *others[:2])
    return None
