"""`oddrank postmortem`: its options, and its way from folders to a verdict and a page."""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path
from typing import Any

from oddrank import files

__all__ = ["add"]

STATUS = """\
exit status:
  0  a verdict: what went wrong, or that these files show nothing wrong
  1  no file was recognised, or the files do not tell what went wrong
  2  a request that cannot be met
"""
NOTABLE_BYTES = 20 << 20  # below, reading takes no time that a progress bar could show


def add(commands: Any) -> None:
    """Add the command to those of `oddrank`."""
    about = "Read what a dead or hanging job left (flight records, logs, TORCH_TRACE, stacks), and write one page."
    parser = commands.add_parser(
        "postmortem",
        help="which rank a dead or hanging job waits for, and why",
        description=about,
        epilog=STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = "folders or files that the job left"
    parser.add_argument("folders", nargs="+", type=files.folder, metavar="DIR", help=what)
    where = "where the page goes (default: postmortem)"
    parser.add_argument("--out", type=files.folder, default=Path("postmortem"), metavar="DIR", help=where)
    parser.set_defaults(act=_postmortem)


def _postmortem(asked: argparse.Namespace) -> int:
    files.writable(asked.out, "index.html")
    collects = gc.isenabled()
    gc.disable()  # records are millions of small objects without circles: looking for garbage among them takes longest
    try:
        return _verdict(asked.folders, asked.out)
    finally:
        if collects:
            gc.enable()


def _verdict(folders: list[Path], out: Path) -> int:
    from oddrank.postmortem import annotation, judgement, page, tools
    from oddrank.postmortem.folder import gather
    from oddrank.postmortem.summary import summary

    material = gather(folders, _Progress() if sys.stderr.isatty() else lambda done, total, file: None)
    verdict = judgement.judge(material)
    source = annotation.Annotation()
    try:
        source = annotation.annotation(material)
    except Exception as error:  # traces are data from outside, and cost no verdict
        print(f"oddrank: the source is not shown: {type(error).__name__}: {error}", file=sys.stderr)
    print(summary(verdict, material, source.text), flush=True)
    if not any(file.kind for file in material.files):
        return 1
    html = page.html(verdict, material, folders[0].resolve().name, tools.run(material, out), source.parts)
    try:
        path = files.write(out / "index.html", html.encode("utf-8", "replace"))
    except OSError as error:
        raise ValueError(f"cannot write in {out}: {error.strerror or error}") from error
    print(f"\npage: {path}")
    return 1 if verdict.kind == "cannot tell" else 0


class _Progress:
    """A bar in the terminal, where there is much to read."""

    def __init__(self) -> None:
        self.share = -1

    def __call__(self, done: int, total: int, file: str) -> None:
        share = 100 * done // max(total, 1)
        if total <= NOTABLE_BYTES or share == self.share:
            return
        self.share = share
        bar = f"\r{'#' * (share // 4):<25} {share:3d} % {file[-40:]:<40}"
        print(bar, end="" if file else "\n", file=sys.stderr, flush=True)
