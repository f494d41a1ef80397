"""A Sphinx extension that writes formulas as MathML, which browsers draw themselves: no script, no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)


def draw(writer: Any, node: nodes.Element, block: bool) -> None:
    """Write one formula; one that cannot be read stands as its source, with a warning that fails the build."""
    source = node.astext()
    try:
        formula = tex2mathml(source, as_block=block)
    except MathError as error:
        logger.warning("formula cannot be drawn: %s", error, location=node)
        formula = f"<code>{writer.encode(source)}</code>"
    writer.body.append(f'<div class="formula">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(lambda writer, node: draw(writer, node, block=False), None),
        block_renderers=(lambda writer, node: draw(writer, node, block=True), None),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
