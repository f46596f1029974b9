"""How Sphinx builds these pages: `make docs` writes them to build/docs."""

from __future__ import annotations

import importlib.metadata

project = "autotune"
author = "the autotune developers"
release = importlib.metadata.version("autotune-compiler")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
]
exclude_patterns = ["decisions/template.md"]
html_theme = "furo"
html_title = "autotune"
html_static_path = ["_static"]
html_css_files = ["doors.css"]

default_role = "literal"  # `name` in docstrings, which are read as reStructuredText
smartquotes_action = "qe"  # quotes and ellipses, not dashes: `--option` is to be copied

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
