"""Building the book as `make book` does, and reading its pages; shared by the tests in book/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Page(HTMLParser):
    """What the tests ask of a page: its anchors, links, pictures, headings and words."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    pictures: list[dict] = field(default_factory=list)
    headings: list[int] = field(default_factory=list)
    words: str = ""
    _skip: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.html = self.path.read_text(encoding="utf-8")
        self.feed(self.html)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if found.get("id"):
            self.anchors.add(found["id"])
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("link", "script", "img"):
            self.files += [found[name] for name in ("src", "href") if found.get(name)]
        if tag == "img":
            self.pictures.append(found)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self._skip += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._skip -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._skip:
            self.words += data


def build(notebooks: Path, out: Path) -> subprocess.CompletedProcess:
    """Run the recipe of `make book` on a folder of notebooks, with every address refused."""
    recipe = re.search(r"-m (sphinx .*) notebooks build/book", (ROOT / "Makefile").read_text())[1].split()
    recipe = [str(out / "doctrees") if word == "build/doctrees" else word for word in recipe]
    nowhere = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "all_proxy")}
    return subprocess.run(
        [sys.executable, "-m", *recipe, str(notebooks), str(out / "book")],
        cwd=ROOT, env={**os.environ, **nowhere}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
