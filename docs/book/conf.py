"""How `make book` turns the lessons, as they are committed, into a website. Nothing is executed and nothing fetched.

python -m sphinx -W --keep-going -c docs/book notebooks build/book
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]  # pages and mathml beside this file; labkit of this checkout

from tools.course import FRONT  # noqa: E402

project = "How PyTorch compiles distributed code"
language = "en"
root_doc = FRONT
exclude_patterns = ["**.ipynb_checkpoints", "torch_compile_debug"]
extensions = ["myst_nb", "pages", "mathml"]

nb_execution_mode = "off"  # the committed outputs are shown
nb_ipywidgets_js = {}  # widgets are saved as their static twins, so no page needs a script from a network
nb_merge_streams = True
nb_code_prompt_show = "Show the {type}"
nb_code_prompt_hide = "Hide the {type}"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["book.css"]
html_copy_source = False  # a lesson's source is the notebook itself
html_show_sourcelink = False
html_show_copyright = False
html_use_index = False  # there are no index entries
html_theme_options = {"navigation_with_keys": True}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
