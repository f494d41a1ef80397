"""One execution of a lesson for all tests of its file."""

from __future__ import annotations

import lesson_run
import pytest


def pytest_generate_tests(metafunc):
    if "run" in metafunc.fixturenames:
        sizes = getattr(metafunc.module, "SIZES", ("",))
        metafunc.parametrize("run", sizes, indirect=True, scope="module", ids=lambda size: size or "whole")


@pytest.fixture(scope="module")
def run(request, tmp_path_factory):
    return lesson_run.take(request.module.LESSON, request.param, tmp_path_factory.mktemp("lesson"))
