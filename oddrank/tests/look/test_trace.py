"""`--trace`, its file and the strip on the page: what they hold is what was recorded."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from oddrank.files import Unsaved
from oddrank.look import look
from oddrank.look.chrome_trace import chrome_trace, save
from oddrank.record import Range, Record, Segment, Tables
from oddrank.record.timeline import collective_op, point_to_point
from oddrank.strip import viewer

from oddrank import command as cli

SCRIPT = Path(__file__).parent / "scripts" / "groups.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the script on two ranks: its page, and its trace beside it."""
    made = tmp_path_factory.mktemp("trace")
    assert cli.main(["look", "--out", str(made / "page"), "--trace", str(made / "t.json"), str(SCRIPT)]) == 0
    return made


@pytest.fixture(scope="module")
def looked(folder: Path) -> look.Look:
    read = look.read(folder / "page")
    assert read is not None
    return read


@pytest.fixture(scope="module")
def trace(folder: Path) -> dict:
    return json.loads((folder / "t.json").read_text())


def of(trace: dict, *phases: str) -> list[dict]:
    return [event for event in trace["traceEvents"] if event["ph"] in phases]


def check_format(trace: dict) -> None:
    """What the Trace Event Format asks of the events that are used."""
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and event["name"]
        assert event["ph"] in "MXistf"
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and event["args"]["name"]
            continue
        assert isinstance(event["ts"], float) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["cat"]
            tracks[event["pid"], event["tid"]].append(event)
        if event["ph"] == "i":
            assert event["s"] == "t"
    for track in tracks.values():  # slices of a thread lie in or behind each other
        open_: list[float] = []
        for event in sorted(track, key=lambda e: (e["ts"], -e["dur"])):
            end = event["ts"] + event["dur"]
            while open_ and open_[-1] <= event["ts"] + 1e-4:
                open_.pop()
            assert not open_ or end <= open_[-1] + 1e-3, event
            open_.append(end)
    flows = defaultdict(list)
    for event in of(trace, "s", "t", "f"):
        flows[event["id"]].append(event)
        inside = [
            one
            for one in tracks[event["pid"], event["tid"]]
            if one["cat"] == "collective" and one["ts"] <= event["ts"] <= one["ts"] + one["dur"]
        ]
        assert [collective_op(one["name"]) for one in inside] == [event["name"].partition(",")[0]]
        assert inside[0]["args"]["group"] in event["name"]
    for points in flows.values():
        assert [p["ph"] for p in points] == ["s", *["t"] * (len(points) - 2), "f"]
        assert points[-1]["bp"] == "e" and len({p["pid"] for p in points}) == len(points)
        assert [p["ts"] for p in points] == sorted(p["ts"] for p in points)


@pytest.mark.slow
def test_the_trace_is_in_the_format_and_its_counts_are_the_records(trace, looked):
    check_format(trace)
    for counts in looked.record.counts:
        rank = counts.rank
        mine = [e for e in of(trace, "X", "i") if e["pid"] == rank and e["args"]["step"] >= 0]
        kinds = Counter(e["cat"] for e in mine if not point_to_point(e["name"]))
        for column, kind in (("regions", "region"), ("breaks", "break"), ("collectives", "collective")):
            assert kinds[kind] == getattr(counts, column) * counts.forwards > 0, kind
        assert kinds["compile"] > 0, "the fifth step compiles again"
    breaks = of(trace, "i")
    assert {e["args"]["place"] for e in breaks} == {"groups.py:18 (Block.forward)"}
    names = {(e["pid"], e["args"]["name"]) for e in of(trace, "M") if e["name"] == "process_name"}
    assert names == {(0, "rank 0"), (1, "rank 1")}


@pytest.mark.slow
def test_ranks_are_on_one_clock_and_arrows_join_a_collective_of_one_group(trace, looked):
    steps = {(e["pid"], e["args"]["step"]): e for e in of(trace, "X") if e["cat"] == "forward"}
    for step in range(looked.steps):
        a, b = steps[0, step], steps[1, step]
        assert a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"], "ranks wait for each other"
    calls = [e for e in of(trace, "X") if e["cat"] == "collective"]
    groups = Counter((e["pid"], e["args"]["group"].partition(": ")[2]) for e in calls)
    assert set(groups) == {(0, "0"), (0, "0, 1"), (1, "0, 1")}
    assert len(of(trace, "s")) == len(of(trace, "f")) == groups[0, "0, 1"] == groups[1, "0, 1"]
    assert all(e["name"].endswith(": 0, 1") for e in of(trace, "s"))
    slices = {(e["pid"], e["ts"]): e for e in calls}
    for start, end in zip(of(trace, "s"), of(trace, "f"), strict=True):
        first, last = (
            max((c for (pid, ts), c in slices.items() if pid == p["pid"] and ts <= p["ts"]), key=lambda c: c["ts"])
            for p in (start, end)
        )  # fmt: skip
        assert first["args"]["step"] == last["args"]["step"]
    assert trace["otherData"]["notes"] == looked.record.notes


@pytest.mark.slow
def test_merge_writes_the_same_trace(folder, trace, tmp_path):
    words = ["--merge", str(folder / "page"), "--out", str(tmp_path / "page"), "--trace"]
    assert cli.main(["look", *words, str(tmp_path / "t.json")]) == 0
    assert json.loads((tmp_path / "t.json").read_text()) == trace
    assert cli.main(["look", *words[:-2], str(tmp_path / "again"), "--trace", str(tmp_path / "t.json")]) == 2
    assert not (tmp_path / "again").exists()


def made(calls: dict[int, list[tuple[str, str]]], clock: str = "one") -> Tables:
    """A record of ranks that make these collectives one after the other: operation and group."""
    record = Tables(clock=clock)
    for rank, mine in calls.items():
        for i, (name, group) in enumerate(mine):
            start = 10.0 * i + rank
            record.ranges.append(Range(rank, 0, "collective", name, start, start + 5, group=group))
    return record


PAIR = "0: 0, 1"
REDUCE, GATHER = ("c10d::allreduce_", PAIR), ("c10d::_allgather_base_", PAIR)


@pytest.mark.parametrize(
    ("calls", "arrows", "note"),
    [
        # two groups of one name: pairs are joined, and not all four
        ({r: [(REDUCE[0], f"1: {'0, 1' if r < 2 else '2, 3'}")] for r in range(4)}, [(0, 1), (2, 3)], ""),
        ({r: [(REDUCE[0], "0: 0, 1, 2")] for r in range(3)}, [(0, 1, 2)], ""),
        # a member of the group did not call it
        ({r: [(REDUCE[0], "1: 2" if r == 2 else "0: 0, 1, 2")] for r in range(3)}, [], "2 collectives"),
        # up to where ranks differ
        ({0: [REDUCE] * 3, 1: [REDUCE, GATHER, REDUCE]}, [(0, 1)], "4 collectives"),
        ({0: [REDUCE] * 3, 1: [REDUCE]}, [(0, 1)], "2 collectives"),
        # a group that is not known could be any: nothing is counted
        ({0: [(REDUCE[0], ""), REDUCE], 1: [REDUCE, REDUCE]}, [], "4 collectives"),
        ({0: [("c10d::send", PAIR)], 1: [("c10d::send", PAIR)]}, [], ""),
    ],
)  # fmt: skip
def test_arrows_join_what_is_known_to_be_one_collective(calls, arrows, note):
    trace = chrome_trace(made(calls))
    check_format(trace)
    ranks = defaultdict(list)
    for event in of(trace, "s", "t", "f"):
        ranks[event["id"]].append(event["pid"])
    assert sorted(map(tuple, ranks.values())) == arrows
    said = " ".join(trace["otherData"]["notes"])
    assert said.startswith(note) and bool(said) == bool(note)
    assert not of(chrome_trace(made(calls, clock="")), "s")


def test_events_of_a_thread_that_overlap_get_a_track_each():
    record = made({0: [REDUCE] * 3})
    for one in record.ranges:
        one.end_us += 7  # each reaches into the next
    trace = chrome_trace(record)
    check_format(trace)
    assert [e["tid"] for e in of(trace, "X")] == [0, 1, 0]


def test_a_trace_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Unsaved, match="cannot write .*t.json"):
        save(made({0: [REDUCE]}), tmp_path / "file" / "t.json")
    with pytest.raises(ValueError, match="still open"):
        save(Record(), tmp_path / "t.json")


# --- the strip on the page ---


def shown(body: str) -> dict:
    return json.loads(re.search(r"<script type='application/json'>(.*?)</script>", body, re.S)[1])


@pytest.mark.slow
def test_the_page_holds_what_the_strip_draws(folder, looked):
    body = (folder / "page" / "index.html").read_text()
    data, segments = shown(body), looked.record.segments
    assert (data["unit"], data["ranks"], len(data["steps"])) == ("step", [0, 1], 3)
    for number, step in enumerate(data["steps"]):
        bars = [item for item in step["items"] if item[1] >= 0 and not data["kinds"][item[1]]["thin"]]
        assert len(bars) == sum(one.forward == number for one in segments)
        assert len([item for item in step["items"] if item[1] < 0]) == 2 * looked.record.counts[0].breaks
        assert "Left out" not in step["said"] and "groups.py:18 (Block.forward)" in step["said"]
    assert any("group 1: 0" in text for text in data["texts"])
    assert "<noscript><pre>rank 0: " in body


@pytest.mark.slow
def test_the_page_is_bounded_and_says_what_it_leaves_out(looked, monkeypatch):
    monkeypatch.setattr(viewer, "STEPS", 2)
    monkeypatch.setattr(viewer, "RANKS", 1)
    monkeypatch.setattr(viewer, "ITEMS", 20)
    body = viewer.viewer(looked.record)
    data = shown(body)
    assert "Not in this figure: 1 more step and 1 more rank." in body
    assert (len(data["steps"]), data["ranks"]) == (2, [0])
    for step in data["steps"]:
        kinds = Counter(item[1] for item in step["items"])
        assert sum(kinds.values()) == 20 and kinds[-1] == 2, "breaks stay"
        assert re.search(
            r"Left out: \d+ of \d+ bars and breaks, the shortest, with \d+\.\d% of the time", step["said"]
        )


def test_a_name_of_the_program_cannot_end_the_script():
    name = "</script><script>alert(1)</script>\u2028<!--"
    record = made({0: [(name, name)]})
    record.segments.append(Segment(0, 0, "collective", 0.0, 5.0, name, name))
    body = viewer.viewer(record)
    assert body.count("</script>") == 2 and "<!--" not in body and "\u2028" not in body
    assert any(name in text for text in shown(body)["texts"])
    assert "nothing was recorded" in viewer.viewer(Tables())
