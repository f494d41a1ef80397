"""uv's options for what pip is configured to do: uv knows nothing of pip's configuration.

Only the standard library is imported: `tools/install.py` reads this before anything is installed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

__all__ = ["as_uv", "configured"]

# what pip's configuration calls it, and uv's option; several values stand in one line, as pip has them
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraints",
    "trusted-host": "--allow-insecure-host",
    "no-binary": "--no-binary",
    "only-binary": "--only-binary",
}
SECTIONS = ("global", "install", ":env:")  # each takes the place of what the ones before it say


def configured(listing: str) -> dict[str, str]:
    """What pip's configuration says about an installation.

    Args:
        listing: what `pip config list` prints.

    Returns:
        The value of each setting by its name; of a setting that stands in several sections, the one that pip takes.

    >>> configured("global.find-links='/wheels'\\n:env:.find-links='/more'\\nlist.format='json'")
    {'find-links': '/more'}
    """
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        setting = re.fullmatch(r"(:?\w+:?)\.([\w-]+)=(.*)", line.strip())
        if setting is None or setting[1] not in SECTIONS:
            continue
        rank, name = SECTIONS.index(setting[1]), setting[2].replace("_", "-")
        if rank >= found.get(name, (-1, ""))[0]:
            found[name] = (rank, str(ast.literal_eval(setting[3])))
    return {name: value for name, (_, value) in found.items()}


def as_uv(settings: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """pip's settings as options and environment variables of uv.

    Candidates of all indexes compete, as they do for pip; of uv's own configuration nothing counts.

    >>> as_uv({"find-links": "/wheels /more", "cert": "/ca.pem"})[0][2:]
    ['--find-links', '/wheels', '--find-links', '/more']
    """
    options = ["--no-config", "--index-strategy=unsafe-best-match"]
    for name, option in OPTIONS.items():
        for value in settings.get(name, "").split():
            options += [option, value]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
    env = {}
    if "cert" in settings:
        env["SSL_CERT_FILE"] = settings["cert"]
    if "default-timeout" in settings or "timeout" in settings:
        env["UV_HTTP_TIMEOUT"] = settings.get("timeout", settings.get("default-timeout", ""))
    return options, env
