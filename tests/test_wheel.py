"""The wheels: labkit and oddrank without the repository, lessons and data included."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel was installed into, beside the packages of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    # a copy: setuptools builds inside the tree that it is given
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    for name in filter(None, listed):
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((REPOSITORY / name).read_bytes())
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    build += [str(source), str(source / "oddrank")]
    subprocess.run(build, check=True, timeout=300)
    wheels = [str(wheel) for wheel in folder.glob("*.whl")]
    assert len(wheels) == 2
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(folder / "site"), *wheels], check=True, timeout=300
    )
    return folder


def labkit(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(installed / "site")}
    command = [sys.executable, "-m", "labkit", *words]
    return subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=300, env=env)


def test_it_carries_every_lesson_and_every_file_of_data(installed: Path) -> None:
    (wheel,) = installed.glob("labkit-*.whl")
    inside = {name.removeprefix("labkit/shipped/") for name in zipfile.ZipFile(wheel).namelist()}
    listed = ["git", "ls-files", "notebooks", "data"]
    files = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    assert set(filter(None, files)) <= inside


def test_oddranks_is_whole_and_holds_no_other_module(installed: Path) -> None:
    (wheel,) = installed.glob("oddrank-*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "oddrank/src"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    assert inside == {name.removeprefix("oddrank/src/") for name in listed}, (
        "a job gets oddrank, whole, and nothing else"
    )


def test_the_lessons_are_copied_out_and_never_over_a_readers_copy(installed: Path, tmp_path: Path) -> None:
    first = labkit(installed, "lessons", str(tmp_path / "mine"))
    assert first.returncode == 0, first.stderr
    names = [path.stem for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb"))]
    assert [path.stem for path in sorted((tmp_path / "mine").glob("*.ipynb"))] == names
    drawn = {path.name for path in (REPOSITORY / "notebooks" / "pictures").iterdir()}  # at the lessons' heads
    assert drawn == {path.name for path in (tmp_path / "mine" / "pictures").iterdir()}
    worked_in = tmp_path / "mine" / f"{names[0]}.ipynb"
    worked_in.write_text("my notes")
    again = labkit(installed, "lessons", str(tmp_path / "mine"))
    assert again.stdout.count("left alone") == len(names) + len(drawn) and worked_in.read_text() == "my notes"
    assert labkit(installed, "lessons").stdout.split() == names


def test_what_reads_data_finds_it(installed: Path) -> None:
    news = labkit(installed, "ledger", "--diff", "2.13.0", "2.15.0")  # reads facts and recorded answers
    assert news.returncode == 0 and "facts differ" in news.stdout, news.stderr
    code = (
        "import labkit, sys; assert 'site' in labkit.__file__, labkit.__file__\n"
        "from course.shared import reference; from course.shared.streams import shipped\n"
        "print(len(list(reference.FOLDER.iterdir())), shipped.FILE.is_file())"
    )
    env = {**os.environ, "PYTHONPATH": str(installed / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=installed, capture_output=True, text=True, env=env
    )
    assert done.stdout.split() == [str(len(list((REPOSITORY / "data" / "reference").iterdir()))), "True"], (
        done.stderr
    )


def test_recording_without_a_repository_asks_where_to(installed: Path) -> None:
    refused = labkit(installed, "run", "04", "--save")
    assert refused.returncode == 2 and "give a folder, as in --save DIR" in refused.stderr
