"""Private torch names, the versions that have them, and what the doctor says of them."""

from __future__ import annotations

import re
import subprocess
import sys
import types

import pytest
from oddrank.torch_names import find, require

from labkit import doctor, torch_compat

CHECK = "torch._inductor.cpu_vec_isa.VecISA.check_build"
# modules that are asked for whole: for a user, for `__file__`, and for what only some builds or versions have
MODULES = {
    "torch.distributed._functional_collectives",
    "torch._C._distributed_c10d",
    "torch._inductor.fx_passes.overlap_scheduling",
}


def test_the_versions_that_are_said_to_have_a_name_are_right_about_the_installed_torch():
    names = doctor._names()
    wrong = [(n.function, str(n), n.since, n.until, n.there) for n in names if n.there != n.in_range]
    assert len(names) > 80 and wrong == []


def test_a_name_that_is_asked_for_is_what_is_needed_and_not_the_module_that_has_it():
    asked = {name for one in doctor._names() for name in one.names}
    assert {name for name in asked if isinstance(find(name), types.ModuleType)} == MODULES


def test_the_doctor_reads_helpers_settings_alternatives_and_optional_names():
    found = {(one.function, str(one), one.since, one.until, one.optional) for one in doctor._names()}
    callback = "torch._C._dynamo.eval_frame.set_bytecode_debugger_callback"
    rates = "torch.utils._runtime_estimation.get_gpu_dram_gbps or torch.utils._runtime_estimation.get_device_dram_gbps"
    assert {
        ("on_region_entry", callback, "2.12", "2.15", True),
        ("sees_every_region", callback, "2.12", "2.15", True),
        ("no_compile_caches", "torch._inductor.config.force_disable_caches", "2.11", "2.15", False),
        ("stated_hardware", rates, "2.11", "2.15", False),
    } <= found


def test_a_range_that_is_none_is_refused():
    for since, until in [("2.10", "2.12"), ("2.12", "2.16"), ("2.14", "2.12"), ("2.12", ""), ("", "x")]:
        for ask in (require, find):
            with pytest.raises(
                ValueError, match=f"from '{since}' to '{until}' is no range within torch 2.11"
            ):
                ask("torch._dynamo.reset", since=since, until=until)


def test_of_several_names_one_is_enough_and_an_error_names_all(monkeypatch):
    import torch

    assert require("torch._dynamo.nothing", "torch._dynamo.reset") is torch._dynamo.reset
    monkeypatch.setattr(torch, "__version__", "2.11.0+cpu")
    said = "torch 2.11.0+cpu has no torch._dynamo.a or torch._dynamo.b.c; torch 2.13 has it"
    with pytest.raises(torch_compat.UnsupportedTorch, match=f"^{re.escape(said)}$"):
        require("torch._dynamo.a", "torch._dynamo.b.c", since="2.13", until="2.13")


def test_a_setting_that_a_torch_lacks_is_named():
    with pytest.raises(torch_compat.UnsupportedTorch, match="has no torch._inductor.config.no_such_setting;"):
        torch_compat.patched("inductor.config", no_such_setting=True)


def test_the_doctor_says_what_passed_on_a_version_that_was_run_in_part():
    assert torch_compat.RUN.keys().isdisjoint(torch_compat.TESTED)
    for version, passed in torch_compat.RUN.items():
        torch_compat.check_version(version)
        assert (
            doctor._tested(f"{version}+cpu")
            == f"torch {version}: {passed}; tested in full: 2.13.0 and 2.15.0"
        )
    assert "not tested; tested in full: 2.13.0" in doctor._tested("2.14.7")


def test_a_missing_name_is_told_with_what_is_lost(monkeypatch):
    from torch._inductor import cpu_vec_isa

    before = doctor.examine()
    monkeypatch.delattr(cpu_vec_isa.VecISA, "check_build")
    private, lost = [
        text
        for word, text in doctor.examine()
        if word in ("private", "lacking") and (word, text) not in before
    ]
    assert re.search(f"this torch lacks (.*, )?{CHECK}[:,]", private)  # 2.11 lacks others as well
    does = "Collect the events of torch's own compile phases in a block"
    assert lost == f"compile_events (torch 2.11 to 2.15): no {CHECK}; lost: {does}"
    with pytest.raises(torch_compat.UnsupportedTorch, match=f"has no {CHECK}; torch 2.11 to 2.15 has it"):
        with torch_compat.compile_events():
            pass


def test_importing_it_imports_no_torch():
    code = "import sys; from labkit import torch_compat; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
