"""Worlds that are not there, traced in one process; and the model, which never passes for a measurement."""

from __future__ import annotations

import re

import pytest

import labkit
from course.cliff.program import Config
from course.scale import experiment as scale
from course.scale import worlds
from course.shared.costs import terms
from labkit import cli, lessons

TRACED = (1, 2, 4, 1024)
STATED = {"alpha": 10.0, "bandwidth": 25.0, "overhead": 20.0, "rate": 1e5, "trace": True}


@pytest.fixture(scope="module")
def found(ranks):
    """A report with measurements, made while a real process group is initialised in this very process."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        before = dist.group.WORLD
        report = scale.run(ranks, TRACED, rounds=2)
        x = torch.ones(3)
        dist.all_reduce(x)
        after = {"same": dist.group.WORLD is before, "sum": x.tolist(), "backend": dist.get_backend()}
    finally:
        dist.destroy_process_group()
    return report, after


@pytest.mark.slow
def test_a_group_of_this_process_is_left_as_it_was(found):
    assert found[1] == {"same": True, "sum": [1.0, 1.0, 1.0], "backend": "gloo"}


@pytest.mark.slow
def test_four_collectives_in_every_world_and_their_bytes(found):
    shown = found[0].tables["worlds"]
    first = shown[shown["rank"] == 0].set_index("world_size")
    assert first["collectives"].to_dict() == {1: 0, 2: 4, 4: 4, 1024: 4}
    norm, whole = 32 * 4, 32 * 1024 * 4  # a float32 a token; tokens x features
    for world in (2, 4, 1024):
        sent = sum(terms("all_reduce", world, n)[1] for n in (norm, norm, whole, whole))
        assert first.loc[world, "sent_bytes"] == sent
        assert first.loc[world, "message_bytes"] == 2 * norm + 2 * whole
    single = found[0].tables["collectives"]
    assert list(single[single["world_size"] == 1024]["what"][:4]) == [
        "q-norm",
        "k-norm",
        "attention output",
        "MLP output",
    ]
    assert set(single["operation"]) == {"all_reduce"} and set(single["reduction"]) == {"sum"}
    assert set(single[single["what"] == "MLP output"]["shape"]) == {"1 x 32 x 1024"}


@pytest.mark.slow
def test_work_and_weights_are_a_ranks_share(found):
    shown = found[0].tables["worlds"]
    first = shown[shown["rank"] == 0].set_index("world_size")
    assert first.loc[2, "flops"] == 512 * first.loc[1024, "flops"] == first.loc[1, "flops"] / 2
    products = 2 * 32 * 12 * 1024**2 / 2  # the four projections, on one of two ranks
    assert products < first.loc[2, "flops"] < 1.05 * products  # and attention
    assert first.loc[1024, "weight_bytes"] < first.loc[2, "weight_bytes"] / 300


@pytest.mark.slow
def test_all_worlds_and_the_first_and_last_rank_have_one_graph(found):
    shown = found[0].tables["worlds"]
    assert set(map(tuple, shown[["world_size", "rank"]].to_numpy())) == {
        (1, 0),
        (2, 0),
        (4, 0),
        (1024, 0),
        (1024, 1023),
    }
    assert shown[shown["world_size"] > 1]["digest"].nunique() == 1 < shown["digest"].nunique()
    graphs = found[0].tables["graphs"].set_index(["world_size", "rank"])["graph"]
    assert graphs[1024, 0] == graphs[1024, 1023]
    assert graphs[1024, 0].count("_c10d_functional.all_reduce.default(") == 4
    assert "f32[4, 1024]" in graphs[1024, 0]  # a rank's rows of the MLP
    assert not re.search(r"# File|/labkit/|site-packages", graphs.str.cat())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_world(found):
    peaks = found[0].tables["tracer"].set_index(["world_size", "rank"])["peak_mib"]
    assert peaks[1024, 1023] - peaks[2, 0] < 40  # 1,024 ranks' weights and messages would be gigabytes


@pytest.mark.slow
def test_simulated_tables_have_no_time_and_models_say_that_they_are_models(found):
    report = found[0]
    assert report.label == "simulated, model, shm · cpu, gloo · cpu" or report.label.startswith(
        "simulated, model, "
    )
    for name in ("worlds", "collectives", "graphs"):
        assert not [c for c in report.tables[name] if re.search(r"ms\b|_us|second|time", c)]
    times = [c for c in report.frame if " ms" in c or "share" in c]
    assert times and all(("model" in c) or ("measured" in c) for c in times)
    assert set(
        report.frame.loc[report.frame["world_size"] == 1024, [c for c in times if "measured" in c]].iloc[0]
    ) == {"-"}
    assert set(report.tables["steps"]["world_size"]) == {2, 4}  # measured: only what is here


@pytest.mark.slow
def test_the_model_is_held_against_two_and_four_ranks(found):
    check, notes = found[0].tables["check"], " ".join(found[0].notes)
    assert {(r.link, r.world_size) for r in check.itertuples()} == {
        (link, n) for link in ("gloo · cpu", "shm · cpu") for n in (2, 4)
    }
    for r in check.itertuples():
        assert r.error == pytest.approx(r.model_ms / r.measured_ms - 1)
        assert r.in_the_spread == (r.p10 <= r.model_ms <= r.p90)
        assert f"{r.link}, {r.world_size} ranks: model" in notes and f"off by {r.error:+.0%}" in notes
    four = check[check["world_size"] == 4]
    assert sorted(set(four["constants"])) == [
        f"fitted, {link} · cpu, {n} ranks" for link in ("gloo", "shm") for n in (2, 4)
    ]
    assert "outputs agree with the unsharded block" in notes
    assumed = found[0].tables["assumptions"]
    assert len(assumed) >= 8 and all(f"the model assumes: {a}" in notes for a in assumed.iloc[:, 0])
    assert "Patarasuk" in notes


@pytest.mark.slow
def test_bytes_of_the_trace_are_those_that_pass_the_sockets(found):
    sent = found[0].tables["sent"]
    if sent.empty:
        pytest.skip("this system does not count the bytes of a connection")
    assert set(sent["link"]) == {"gloo · cpu"} and len(sent) == 2 + 4
    assert ((sent["more"] >= 0) & (sent["more"] < 0.25)).all()  # headers and notices come on top


@pytest.mark.slow
def test_without_measuring_there_is_nothing_measured_in_it(ranks):
    report = scale.run(ranks, [2], **STATED, dim=64, heads=8, tokens=4)
    assert report.label == "simulated, model"
    assert all(report.tables[name].empty for name in ("sweep", "steps", "work", "sent", "check"))
    model = report.tables["model"].iloc[0]
    assert model["link"] == "stated" and not [c for c in report.frame if "measured" in c]
    messages = 4 * (2 * 4 + 2 * 4 * 64)
    assert model["communication_ms"] == pytest.approx(1e3 * (4 * 2 * 10e-6 + messages / 25e9))


# --- a group that is not there ---


def where_a_group_is(fails: bool) -> tuple[str, float]:
    import torch
    import torch.distributed as dist

    try:
        worlds.trace(lessons.program("scale"), Config(dim=64, heads=8, blocks=1), 4)
        said = "traced"
    except RuntimeError as error:
        said = str(error)
    x = torch.ones(())
    dist.all_reduce(x)
    return said, x.item()


def test_a_process_with_a_group_is_refused_and_keeps_it(ranks):
    for said, total in ranks.run(where_a_group_is, False):
        assert (
            said.startswith("a process group (gloo, 2 ranks) is initialised in this process") and total == 2
        )


def traced_and_left(fails: bool) -> dict:
    """On a rank that runs alone: what a trace, or one that raises in its middle, leaves behind."""
    import torch
    import torch.distributed as dist

    dist.destroy_process_group()
    compiled = torch.compile
    if fails:

        def stop(*args, **kwargs):
            raise OSError("in the middle")

        torch.compile = stop
    try:
        found = worlds.trace(lessons.program("scale"), Config(dim=64, heads=8, blocks=1, tokens=4), 8, 7)
        said = f"{len(found['collectives'])} collectives"
    except OSError as error:
        said = str(error)
    finally:
        torch.compile = compiled
    left = dist.is_initialized()
    x = torch.ones(2) * 3  # a real tensor again: no fake mode is left on
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(x)
    return {"said": said, "left": left, "x": x.tolist()}


@pytest.mark.slow
def test_nothing_of_a_fake_group_is_left_behind():
    with labkit.Ranks(1, "cpu", "fake", quiet=True) as alone:
        assert alone.run(traced_and_left, False)[0] == {
            "said": "4 collectives",
            "left": False,
            "x": [3.0, 3.0],
        }
        alone.restart()
        assert alone.run(traced_and_left, True)[0] == {
            "said": "in the middle",
            "left": False,
            "x": [3.0, 3.0],
        }


# --- what cannot be ---


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"worlds": [2, 3]}, "heads=1024 cannot be split evenly over world_size=3"),
        ({"worlds": "2,x"}, "such as 2,8,1024; got 'x'"),
        ({"worlds": "2,,4"}, "such as 2,8,1024; got ''"),
        ({"worlds": []}, "no world size was given"),
        ({"worlds": [0]}, "a world size is a whole number from 1 to"),
        ({"worlds": [2.0]}, "a world size is a whole number from 1 to"),
        ({"worlds": [2**21]}, "a world size is a whole number from 1 to"),
        ({"worlds": [2], "heads": 3}, "heads must divide dim"),
        ({"tokens": 0}, "tokens must be a whole number from 1 to 65536"),
        ({"alpha": 1.0}, "alpha was given without bandwidth: they belong together"),
        ({"rate": 1.0}, "rate was given without overhead"),
        ({"alpha": -1.0, "bandwidth": 1.0}, "alpha must be a finite number of 0 or more"),
        ({"alpha": 1.0, "bandwidth": 0}, r"bandwidth must be a finite number above 0 \(GB/s\), got 0"),
        ({"alpha": float("nan"), "bandwidth": 1.0}, "alpha must be a finite number"),
        ({"alpha": "3", "bandwidth": 1.0}, "alpha must be a finite number"),
        ({"overhead": 1.0, "rate": float("inf")}, "rate must be a finite number above 0"),
        ({"algorithm": "tree"}, "unknown algorithm 'tree': there is ring, doubling, best"),
        ({"trace": True}, "needs its constants: alpha, bandwidth, overhead and rate"),
        ({"rounds": 1}, "rounds must be a whole number of at least 2, got 1"),
        ({"dim": 16384}, "a block of dim=16384 has 12.0 GiB of weights"),
    ],
)
def test_what_cannot_be_is_refused_before_any_rank_hears_of_it(ranks, given, words):
    calls = ranks.calls
    with pytest.raises(ValueError, match=words):
        scale.run(ranks, **given)
    assert ranks.calls == calls


def test_one_rank_is_no_link():
    with labkit.Ranks(1, "cpu", quiet=True) as one:
        with pytest.raises(ValueError, match="a link needs two ranks"):
            scale.run(one)


def test_the_command_line_says_it_in_one_sentence(capsys):
    assert cli.main(["run", "scale", "--alpha", "10"]) == 2
    assert "alpha was given without bandwidth" in capsys.readouterr().err
    assert cli.main(["run", "cliff", "--worlds", "2"]) == 2
    assert "cliff has no --worlds" in capsys.readouterr().err
