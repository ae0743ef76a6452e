"""The site: ``make docs`` builds these pages, and a reference from docstrings, into docs/_build."""

import re

import dptoolkit

project = "dptoolkit"
author = "dptoolkit developers"
release = version = dptoolkit.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"dptoolkit {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
# Pages also link to files that are no pages, such as a paper's README: on the site these lead to the text alone.
suppress_warnings = ["myst.xref_missing"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_custom_sections = ["Privacy"]
# Fields of dataclasses are listed once, in the text of their class.
napoleon_use_ivar = True
# The order of the pages; index.md is the page that opens.
root_doc = "contents"
_LITERAL = re.compile(r"(``.*?``)")


def _plain_text(app, what, name, obj, options, lines):
    """Docstrings are plain text: |x| is a norm and * a product, not markup."""
    for i, line in enumerate(lines):
        parts = _LITERAL.split(line)
        lines[i] = "".join(p if p.startswith("``") else p.replace("|", r"\|").replace("*", r"\*") for p in parts)


def _skip(app, what, name, obj, skip, options):
    """What scikit-learn generates for routing has its explanation in scikit-learn's own pages."""
    return skip or name.startswith("set_") and name.endswith("_request") or name == "get_metadata_routing"


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", _skip)
    # Before napoleon, whose own markup must stay.
    app.connect("autodoc-process-docstring", _plain_text, priority=100)
