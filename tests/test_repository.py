"""The repository keeps its promises: one lock behind every way in, quick set-up, notebooks fit to read."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labkit import files
from oddrank import packages
from tools import course, install, notebooks

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# pip adds what the chosen build of torch needs, so the lock serves CPU and CUDA builds alike
TORCH_BUILD = re.compile(r"nvidia-|triton|cuda-")


def lock() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), pins
    return {canonicalize_name(name): version for name, version in (pin.split("==") for pin in pins)}


def asked_for(*extras: str) -> list[Requirement]:
    optional = PROJECT["optional-dependencies"]
    wanted = PROJECT["dependencies"] + [line for extra in extras for line in optional[extra]]
    return [
        r for r in map(Requirement, wanted) if r.name not in (PROJECT["name"], "oddrank")
    ]  # ours, in folders


def test_the_lock_satisfies_every_requirement_of_the_project():
    pins = lock()
    for requirement in asked_for(*PROJECT["optional-dependencies"]):
        version = pins.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not in requirements.lock: `make lock`"
        assert version in requirement.specifier, f"{requirement} is not met by the locked {version}"


def test_the_lock_pins_everything_that_the_requirements_pull_in():
    pins, seen = lock(), set()
    queue = [(r.name, r.extras) for r in asked_for(*PROJECT["optional-dependencies"])]
    while queue:
        name, extras = queue.pop()
        name = canonicalize_name(name)
        if name in seen or TORCH_BUILD.match(name):
            continue
        seen.add(name)
        assert name in pins, f"{name} is pulled in and not in requirements.lock: `make lock`"
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            if any(needed.marker is None or needed.marker.evaluate({"extra": e}) for e in {"", *extras}):
                queue.append((needed.name, needed.extras))
    assert len(seen) > 50


def test_conda_users_get_the_versions_of_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    conda, (pip,) = [], [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    conda = [d for d in environment["dependencies"] if isinstance(d, str)]
    assert "pip" in conda
    assert pip[-3:] == ["-r requirements.lock", "-e ./oddrank", "-e ."]
    named = dict(line.split("==") for line in pip[:-3])
    assert named == {r.name: lock()[canonicalize_name(r.name)] for r in asked_for("notebooks")}
    (python,) = [d for d in conda if d.startswith("python=")]
    minimum = PROJECT["requires-python"].removeprefix(">=").split(".")
    assert [int(n) for n in python.removeprefix("python=").split(".")] >= [int(n) for n in minimum]


def test_set_up_names_no_host_so_that_a_mirror_serves():
    for name in ("Makefile", "requirements.lock", "environment.yml", "pyproject.toml", "tools/install.py"):
        assert not re.search(r"\w+://\w|pypi|\.org\b", (ROOT / name).read_text()), name


def test_importing_labkit_imports_nothing_heavy():
    code = "import labkit, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "labkit" in loaded
    assert not {"torch", "numpy", "pandas", "matplotlib", "IPython", "ipywidgets"} & set(loaded)


def test_look_runs_without_the_packages_of_the_lessons():
    without = [r.name for r in asked_for("notebooks") if r.name not in {d.name for d in asked_for()}]
    modules = {"ipython": "IPython"}
    code = (
        f"import sys\nfor name in {[modules.get(name, name) for name in without]}: sys.modules[name] = None\n"
        "import labkit.cli, oddrank.look.command, oddrank.look.rank\n"
        "print(labkit.cli.main(['run', '16']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "2\n", done.stderr
    assert "papermill is not installed" in done.stderr and "pip install 'labkit[notebooks]'" in done.stderr


# the Makefile

SET_UP_FROM = ("Makefile", "requirements.lock", "pyproject.toml", "oddrank/pyproject.toml")


@pytest.fixture
def checkout(tmp_path):
    """A folder with what set-up depends on, where set-up has been done."""
    for name in SET_UP_FROM:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    stamp = tmp_path / ".venv" / "installed"
    stamp.parent.mkdir()
    stamp.write_text(f"{tmp_path}\n")
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    env = {
        k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "TORCH_INDEX", "PYTHON")
    }
    return subprocess.run(["make", *arguments], cwd=folder, env=env, capture_output=True, text=True)


def up_to_date(folder: Path, *arguments: str) -> bool:
    return make(folder, "-q", "setup", *arguments).returncode == 0


def test_set_up_has_nothing_to_do_the_second_time(checkout):
    assert up_to_date(checkout)


@pytest.mark.parametrize("name", SET_UP_FROM[1:])
def test_set_up_follows_the_lock_and_the_project(checkout, name):
    later = (checkout / ".venv" / "installed").stat().st_mtime + 10
    os.utime(checkout / name, (later, later))
    assert not up_to_date(checkout)


def test_set_up_follows_and_remembers_the_index_of_torch(checkout):
    assert not up_to_date(checkout, "TORCH_INDEX=https://example.test/cpu")
    (checkout / ".venv" / "torch-index").write_text("https://example.test/cpu\n")
    assert up_to_date(checkout, "TORCH_INDEX=https://example.test/cpu")
    assert up_to_date(checkout)
    assert not up_to_date(checkout, "TORCH_INDEX=https://example.test/cuda")
    assert not up_to_date(checkout, "TORCH_INDEX=")
    plan = make(checkout, "-n", "setup", "TORCH_INDEX=https://example.test/cuda").stdout
    assert "install.py --torch-index https://example.test/cuda --again" in plan


@pytest.mark.parametrize("uv", [(), ("--no-config", "--find-links", "/wheels")])
def test_torch_comes_from_its_index_alone_and_the_rest_from_where_pip_takes_it(uv):
    first, rest, labkit = install.commands("torch==2.13.0", "https://example.test/cpu", True, uv)
    alone, also = ("--default-index", "--index") if uv else ("--index-url", "--extra-index-url")
    assert first[first.index(alone) + 1] == rest[rest.index(also) + 1] == "https://example.test/cpu"
    assert "--no-deps" in first and ("--force-reinstall" in first or "--reinstall-package" in first)
    assert all(set(uv) <= set(command) for command in (first, rest, labkit))
    assert len(install.commands("torch==2.13.0", "", False, uv)) == 2


def test_the_index_of_torch_stands_in_for_the_one_that_pip_is_configured_for():
    uv = ("--no-config", "--default-index", "file:///main")
    first, rest, _ = install.commands("torch==2.13.0", "file:///cpu", False, uv)
    assert first.count("--default-index") == rest.count("--default-index") == 1  # uv refuses a second one
    assert "file:///cpu" in first and "file:///main" not in first and "file:///main" in rest


def test_uv_asks_where_pip_would_ask_and_nowhere_else():
    listing = """:env:.find-links='/wheels'
global.cert='/ca.pem'
global.constraint='/a.txt'
global.extra-index-url='file:///one file:///two'
global.find-links='/not taken'
install.index-url='file:///main'
list.format='json'
user.name='nobody'
"""
    options, env = packages.as_uv(packages.configured(listing))
    said = " ".join(options)
    assert "--default-index file:///main --index file:///one --index file:///two --find-links /wheels" in said
    assert "--constraints /a.txt" in said and "not taken" not in said and "--no-config" in options
    assert env == {"SSL_CERT_FILE": "/ca.pem"}


@pytest.mark.parametrize("broken", ["uv", "lock"])
def test_pip_installs_where_uv_cannot(broken, monkeypatch, capsys):
    ran = []

    def run(command, env=None):
        ran.append(command)
        # uv itself is not to be had; or it is there, and fails on the lock
        return int(command[-1] == install.UV if broken == "uv" else "uv" in command and "-r" in command)

    monkeypatch.setattr(install, "_run", run)
    assert install.main([]) == 0
    by_pip = [command for command in ran if command[:5] == [*install.PIP, "install"]]
    assert [command[-1] for command in by_pip[1:]] == [str(ROOT / "requirements.lock"), str(ROOT)]
    assert "so pip does it" in capsys.readouterr().out


def test_what_make_runs_keeps_the_bytecode_of_what_it_imports(checkout, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # as many containers do
    (checkout / ".venv" / "bin").mkdir()
    script(checkout / ".venv" / "bin" / "python", 'echo "[$PYTHONDONTWRITEBYTECODE]"')
    assert "[]" in make(checkout, "map").stdout.splitlines()


def test_set_up_follows_a_folder_that_moved(checkout, tmp_path_factory):
    moved = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(checkout, moved)
    assert not up_to_date(moved)


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return f"PYTHON={path}"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            '[ "$1" = --version ] && echo Python 3.9.2 && exit 0; exit 1',
            "is Python 3.9.2, and labkit needs 3.11",
        ),
        ('case "$2" in *ensurepip*) exit 1;; esac; exit 0', "cannot make virtual environments"),
    ],
)
def test_an_unfit_interpreter_is_named_in_one_sentence(checkout, body, sentence):
    shutil.rmtree(checkout / ".venv")
    done = make(checkout, "setup", script(checkout / "fake", body))
    assert done.returncode != 0
    first, second = done.stderr.splitlines()
    assert sentence in first and second.startswith("make: ***")
    assert not (checkout / ".venv").exists()


def test_a_missing_interpreter_is_named_in_one_sentence(checkout):
    shutil.rmtree(checkout / ".venv")
    done = make(checkout, "setup", "PYTHON=no-such-python")
    assert done.returncode != 0 and "no-such-python was not found" in done.stderr.splitlines()[0]


def test_a_failed_install_leaves_set_up_to_be_done(checkout):
    shutil.rmtree(checkout / ".venv")
    venv = 'mkdir -p .venv/bin; printf "#!/bin/sh\\nexit 7\\n" > .venv/bin/python; chmod +x .venv/bin/python'
    done = make(checkout, "setup", script(checkout / "fake", f'if [ "$2" = venv ]; then {venv}; fi; exit 0'))
    assert done.returncode != 0 and "Error 7" in done.stderr
    assert (checkout / ".venv" / "bin" / "python").exists()
    assert not (checkout / ".venv" / "installed").exists()


# the lessons, as they are committed


@pytest.mark.parametrize("path", files.notebooks(), ids=lambda path: path.stem)
def test_the_lesson_is_fit_to_read(path):
    assert notebooks.problems(path) == []


def test_the_map_of_the_lessons_says_what_the_lessons_say():
    assert [lesson.name for lesson in course.lessons()] == [path.stem for path in files.lessons()] != []
    assert course.stale() == [], "`make map` writes it"
