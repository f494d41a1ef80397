"""Lesson 06 from top to bottom: the races of six hand-overs, the prices, a trace, and the measured microbatches."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "06_streams_and_events"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]

RACES = {
    "record_then_wait": "no race",
    "record_first": "1 race (record too early)",
    "wait_first": "1 race (wait before record)",
    "record_twice": "1 race (re-recorded)",
    "delete_y": "1 race (cross-stream free)",
    "tell_the_owner": "1 race (cross-stream free)",
}


def test_two_streams_simulated(run):
    assert "one_stream: 18 units, no race. two_streams: 10 units, no race." in run.text("streams-rules")
    micro = run.text("streams-micro-lanes")
    assert "part_by_part: 29 units, computation beside 0% of the communication, no race" in micro
    assert "overlapped: 20 units, computation beside 75% of the communication, no race" in micro


def test_five_of_six_hand_overs_race_and_torchs_sanitizer_misses_those_by_memory(run):
    said = run.text("streams-five-queues")
    assert "the same values here: True" in said
    assert " ".join(f"{name}: {races}." for name, races in RACES.items()) in said
    counted = {name: re.findall(rf"^{name} +(\d) +(\d)", run.text("streams-csan"), re.M) for name in RACES}
    for name, races in RACES.items():
        ours = "1" if races != "no race" else "0"
        assert counted[name] == [(ours, "0" if "free" in races else ours)], name
    assert run.text("streams-ex-races").splitlines()[1:] == [  # delete_y
        "0 ('launch', 'default', ('x',), ('y',))",
        "1 ('record', 'made', 'default')",
        "2 ('wait', 'made', 'side')",
        "3 ('launch', 'side', ('y',), ('z',))",
        "4 ('free', 'y', 'default')",
        "5 ('launch', 'default', ('x',), ('w',))",
        "6 ('record', 'event 11', 'side')",
        "7 ('wait', 'event 11', 'default')",
        "8 ('launch', 'default', ('w', 'z'), ('add',))",
    ]


def test_record_stream_takes_a_block_a_step_and_an_owner_that_waits_takes_its_slots(run):
    rows = re.findall(r"^(\d+) +(\w+) +([-\d]) +(\d) +([\d.]+) +(\d+)$", run.text("streams-price"), re.M)
    assert len(rows) == 6
    for steps, way, slots, races, units, blocks in rows:
        assert (races, blocks) == ("0", steps if way == "told_the_allocator" else slots)
        # a step of mm and relu_ is 5 units, of which all but the first mm's hide relu_ where nothing waits
        assert float(units) == int(steps) * (5 if slots == "1" else 4) + (0 if slots == "1" else 1)


def test_a_kernel_that_fills_the_gpu_leaves_only_its_last_wave_to_another_stream(run):
    """Of recorded data: the kernel that is printed, the waves, and that two streams save nothing."""
    printed = run.text("streams-trace")
    assert '"grid": [16, 32, 1]' in printed
    assert '"allocatedRegistersPerBlock": 65536' in printed and "'regsPerMultiprocessor': 65536" in printed
    said = run.text("streams-filling")
    first, second = map(float, re.findall(r"(?:of 116 blocks, begins at|B1 begins at) ([\d.]+)", said))
    assert second == pytest.approx(first, abs=0.01) and "ms: 5.0 waves" in said
    assert "512 blocks: 8 waves one by one, 8 together" in said
    assert "160 blocks: 4 waves one by one, 3 together" in said
    one, two = map(float, re.search(r"filling +([\d.]+) +([\d.]+)", said).groups())
    assert two == pytest.approx(one, rel=0.001) and f"measured: {two} ms on two streams" in said


def test_the_traces_of_the_exercise_have_both_forms(run):
    said = run.text("streams-ex-traces")
    lanes = [re.findall(r"^(host|stream \d+) +(\d+)", part, re.M) for part in said.split("--- trace ")[1:]]
    assert [[(lane, int(n)) for lane, n in some[1:]] for some in lanes] == [
        [("stream 13", 80), ("stream 17", 80)],
        [("stream 13", 3), ("stream 17", 1)],
        [("stream 13", 3), ("stream 17", 1)],
    ]
    times = dict(re.findall(r"^([ABC] +[\d.]+) +([\d.]+)$", said, re.M))
    gains = {form.split()[0]: float(form.split()[1]) / float(two) for form, two in times.items()}
    assert gains["B"] > 1.5 > gains["C"] > 1.1 > gains["A"]


def test_the_measured_microbatches_say_what_they_compare_and_no_step_is_shorter_than_its_link(run):
    table, report = run.table("microbatch"), run.reports["microbatch"]
    (verdict,) = report.verdicts
    assert list(table["way"]) == ["part_by_part", "overlapped"]
    assert (verdict.a, verdict.b, verdict.n) == ("overlapped", "part_by_part", run.values["ROUNDS"])
    link = run.values["LINK"] if "simulated link" in verdict.evidence else 0
    assert verdict.evidence.endswith(f"{link} ms a sum on a simulated link" if link else "no link")
    assert (table["p10"] >= run.values["PARTS"] * link).all()
    measured = report.tables["samples"]
    assert set(measured["rank"]) == set(range(run.values["RANKS"]))
    modelled = re.findall(r"^(\w+) +[\d.]+ +[\d.]+$", run.text("streams-micro-model"), re.M)
    assert modelled == ["part_by_part", "overlapped"]
    if report.label == "gloo · cpu":  # one rank's waiting for another in each sum, never less than nothing
        sums = re.findall(r"^\d+ +([\d.]+) +([\d.]+)$", run.text("streams-gloo"), re.M)
        assert len(sums) == run.values["PARTS"]
