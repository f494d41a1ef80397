"""The torch versions that labkit supports, and how the rest of this package gets a private torch name.

`require`, `find` and `replaced` are called with the whole name and the versions that have it; without versions all
supported ones do. `labkit doctor` reads these calls.
"""

from __future__ import annotations

from oddrank.torch_names import TRIED, UnsupportedTorch, span, within

SUPPORTED = TRIED
# the whole suite passed on these: 2.13.0; 2.15.0 on 2026-11-29, but for the browser and the executed notebooks
TESTED = ("2.13.0", "2.15.0")
# What passed on the others, on a CPU with their CUDA builds: the quick tests on 2026-11-28, with one fix since; the
# lessons on 2026-11-22, before the third edition. The ledger of this edition ran on all five: data/recorded/torch-*.
RUN = {
    "2.14.1": "the quick tests passed; an eager functional collective is 2 operations",
    "2.14.0": "the lessons of 2026-11-22 ran; an eager functional collective is 2 operations",
    "2.12.0": "the quick tests passed, the lessons of 2026-11-22 ran",
    "2.11.0": (
        "the quick tests passed, the lessons of 2026-11-22 ran; shapes of collectives and regions without a graph are"
        " not recorded, there are no graphs of streams but those shipped, and compiling again on another thread crashes"
        " in torch itself"
    ),
}
# Where a range comes from: each name was looked up in the wheels of 2.11.0, 2.12.0, 2.13.0, 2.14.0 and 2.15.0 (Python
# 3.11; macOS, whose are the smallest, but for 2.13.0), in the Python sources or in libtorch_python. That it is there
# does not say that it still does the same.


def check_version(version: str) -> None:
    """Check that a torch version such as '2.13.0+cpu' is within 2.11 to 2.15.

    Raises:
        UnsupportedTorch: If it is not.

    >>> check_version("2.13.0+cpu")
    """
    if not within(version):
        raise UnsupportedTorch(f"torch {version} is installed; labkit supports torch {span(*SUPPORTED)}")
