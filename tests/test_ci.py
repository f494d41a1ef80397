"""`.ci/run`: it has Chromium before the tests begin, or says why not; a browser test is skipped only elsewhere."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(folder: Path, **programs: str) -> tuple[int, list[str], str]:
    """`.ci/run` where there are only these programs, shell scripts by name: status, what was called, its errors."""
    (folder / "repository" / ".ci").mkdir(parents=True)
    script = shutil.copy(ROOT / ".ci" / "run", folder / "repository" / ".ci")
    found, called = folder / "bin", folder / "called"
    found.mkdir()
    called.touch()
    for name in ("bash", "dirname", "env"):
        (found / name).symlink_to(shutil.which(name) or "")
    for name, body in {"make": 'echo "skips: $LABKIT_NO_SKIP" >> $CALLED', **programs}.items():
        file = found / name.replace("_", "-")
        file.write_text(f'#!{shutil.which("sh")}\necho "$(basename $0) $*" >> $CALLED\n{body}\n')
        file.chmod(0o755)
    (found / "basename").symlink_to(shutil.which("basename") or "")
    env = {"PATH": str(found), "CALLED": str(called)}
    done = subprocess.run([found / "bash", script], env=env, capture_output=True, text=True)
    return done.returncode, called.read_text().splitlines(), done.stderr


def test_with_chromium_nothing_is_installed(tmp_path):
    status, called, _ = run(tmp_path, chromium="", chromedriver="", apt_get="")
    assert status == 0
    assert called == ["make test PYTEST_ARGS=-q --durations=15 ", "skips: 1"]


@pytest.mark.parametrize("user", ["0", "1000"])
def test_a_missing_driver_is_installed_as_root_or_with_sudo(tmp_path, user):
    status, called, _ = run(tmp_path, chromium="", apt_get="", id=f"echo {user}", sudo='shift; exec "$@"')
    assert status == 0
    sudo = [line for line in called if line.startswith("sudo -n env DEBIAN_FRONTEND=noninteractive")]
    assert len(sudo) == (0 if user == "0" else 2)
    update, install = [line for line in called if line.startswith("apt-get")]
    assert update == "apt-get -qq update"
    assert install.startswith("apt-get -qq install --yes") and "chromium chromium-driver" in install
    assert called[-2].startswith("make test")


@pytest.mark.parametrize("apt", [{}, {"apt_get": "exit 100"}], ids=["absent", "failing"])
def test_where_it_cannot_be_installed_the_reason_is_the_last_line(tmp_path, apt):
    status, called, said = run(tmp_path, id="echo 0", **apt)
    assert status == 1 and not any(line.startswith("make") for line in called)
    assert "chromium and chromium-driver are missing and apt-get could not" in said.splitlines()[-1]


@pytest.fixture
def need_browser():
    path = ROOT / "tests" / "browser" / "conftest.py"
    spec = importlib.util.spec_from_file_location("browser_conftest", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.need_browser


@pytest.mark.parametrize("strict", [None, "1"])
def test_without_chromium_a_browser_test_is_skipped_or_fails(need_browser, monkeypatch, tmp_path, strict):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LABKIT_NO_SKIP", raising=False)
    if strict:
        monkeypatch.setenv("LABKIT_NO_SKIP", strict)
    expected = pytest.fail.Exception if strict else pytest.skip.Exception
    with pytest.raises(expected, match="no chromium and chromedriver here"):
        need_browser()
