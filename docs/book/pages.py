"""A Sphinx extension that fits the committed notebooks to the page: navigation, alt text, folded solutions.

The notebooks stay as they are; what this changes, it changes in the text that Sphinx is about to read.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from base64 import b64decode
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from docutils import nodes

from tools.fit import alt_text, code_cells

# the front page leads to every lesson; a code host would show this block as text, so it stands here
CONTENTS = "```{toctree}\n:hidden:\n:glob:\n\nself\n*\n```"


def fit_page(app: Any, name: str, source: list[str]) -> None:
    """Change one notebook's text before it is parsed, and remember what its pictures show."""
    notebook = nbformat.reads(source[0], as_version=4)
    # IPython's own lexer knows magics
    notebook.metadata.setdefault("language_info", {})["pygments_lexer"] = "ipython3"
    for _, cell in code_cells(notebook):
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            fold(cell)
        for index, output in enumerate(cell.outputs):
            remember(app.env, cell, index)
            if "text/html" in output.get("data", {}):
                output.data["text/html"] = settled(output.data["text/html"])
    if made := made_on(notebook):
        notebook.cells.append(nbformat.v4.new_markdown_cell(made, id="made-on"))
    if name == app.config.root_doc:
        notebook.cells.append(nbformat.v4.new_markdown_cell(CONTENTS, id="contents"))
    source[0] = nbformat.writes(notebook)


def made_on(notebook: Any) -> str:
    """A line that says where and when the outputs were made; empty where the notebook does not say."""
    facts = notebook.metadata.get("labkit", {})
    if not facts.get("date"):
        return ""
    return f"*Outputs made with torch {facts['torch']} on {facts['hardware']}, {facts['date']}.*"


def fold(cell: Any) -> None:
    """Fold a cell's code, as JupyterLab does with the cells that hide their source."""
    cell.metadata.tags = [*cell.metadata.get("tags", []), "hide-input"]
    if "solution" in cell.metadata.tags:
        words = {"code_prompt_show": "Show a solution", "code_prompt_hide": "Hide the solution"}
        cell.metadata.mystnb = {**cell.metadata.get("mystnb", {}), **words}


def settled(html: str) -> str:
    """HTML of an output without what disturbs the page it stands in: style sheets, and headings out of order."""
    html = re.sub(r"<style scoped>.*?</style>\s*", "", html, flags=re.DOTALL)
    html = re.sub(r"<h[1-6]\b", '<p class="output-title"', html)
    return re.sub(r"</h[1-6]>", "</p>", html)


def remember(env: Any, cell: Any, index: int) -> None:
    """Keep the text of a picture under the file name that myst-nb will give it: the hash of its bytes."""
    for kind, data in cell.outputs[index].get("data", {}).items():
        if kind.startswith("image/"):
            drawn = b"\n".join(data.encode().splitlines()) if kind == "image/svg+xml" else b64decode(data)
            texts(env)[hashlib.sha256(drawn).hexdigest()] = alt_text(cell, index)


def texts(env: Any) -> dict[str, str]:
    """The alt texts of the build, kept with Sphinx's environment."""
    if not hasattr(env, "labkit_alt_texts"):
        env.labkit_alt_texts = {}
    return env.labkit_alt_texts


def describe(app: Any, doctree: nodes.document) -> None:
    """Give the pictures among the outputs their alt text."""
    for image in doctree.findall(nodes.image):
        stem = PurePosixPath(image["uri"]).stem
        if text := texts(app.env).get(stem, ""):
            image["alt"] = text


def open_on_front(app: Any, error: Exception | None) -> None:
    """Make the front page what a folder or a web server opens first."""
    if error is None and app.builder.format == "html":
        folder = Path(app.outdir)
        shutil.copyfile(folder / f"{app.config.root_doc}.html", folder / "index.html")


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", fit_page)
    app.connect("doctree-read", describe)
    app.connect("build-finished", open_on_front)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
