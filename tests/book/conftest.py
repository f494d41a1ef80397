"""The book, built once for all tests of this folder."""

from __future__ import annotations

import pytest
from book_pages import ROOT, Page, build


@pytest.fixture(scope="session")
def book(tmp_path_factory) -> dict[str, Page]:
    """The pages of the book by file name."""
    out = tmp_path_factory.mktemp("book")
    done = build(ROOT / "notebooks", out)
    assert done.returncode == 0, done.stderr
    return {path.name: Page(path) for path in sorted((out / "book").glob("*.html"))}
