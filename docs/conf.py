"""How Sphinx builds the site: ``sphinx-build -W -c docs . build/site``, from the repository's root.

The root is the source folder, so that links between pages, examples and code are the same in the site and on
a code host. ``_toc.yml`` has the order of the pages.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.addnodes import desc, desc_content, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "integrations")]

from shuffle_plugins import __version__  # noqa: E402

project = "shuffle-plugins"
author = copyright = "the authors of shuffle-plugins"
version = release = __version__

extensions = [
    "sphinx_external_toc",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "docs/README"
external_toc_path = "docs/_toc.yml"
include_patterns = [
    "*.md",
    "docs/**",
    "examples/**/README.md",
    "examples/**/*.png",
    "benchmarks/results/*.png",
]
exclude_patterns = [".*", "build", "dist", "outputs", "shuffle_plugins", "integrations", "tests", "docs/_*"]

html_theme = "furo"
repository = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"][
    "Repository"
]
if ".invalid" not in repository:  # pages have a link to be edited by once there is a public repository
    html_theme_options = {
        "source_repository": repository,
        "source_branch": "main",
        "source_directory": "",
    }
html_title = f"shuffle-plugins {version}"
html_additional_pages = {"index": "to_landing_page.html"}
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False

myst_heading_anchors = 6
nb_execution_mode = "off"

autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "groupwise"}
autodoc_typehints_format = "short"
toc_object_entries = False  # a table of 1,700 names on every page takes a fifth of the time
add_module_names = False
python_maximum_signature_line_length = 90
napoleon_custom_sections = [("Attributes", "params_style")]  # a list, as of arguments; not one entry each
html_math_renderer = "mathml"


class _OthersAsText(SphinxPostTransform):
    """Makes text of references to other libraries, rather than look for each of 15,000 among all names."""

    default_priority = 5  # before references are resolved

    def run(self, **_: object) -> None:
        """In one page."""
        ours = {name.rpartition(".")[2] for name in self.env.domains.python_domain.objects}
        for reference in list(self.document.findall(pending_xref)):
            if reference["refdomain"] == "py" and reference["reftarget"].rpartition(".")[2] not in ours:
                reference.replace_self(reference.children)


def _no_type(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Keep napoleon from taking the words before a colon, in a property's first line, for its type."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment of reStructuredText: the first line, and without a colon


def _headings(app: Sphinx, page: nodes.document) -> None:
    """On a page of the API, a heading for each name, so that they are listed beside the page."""
    if not app.env.docname.startswith("docs/api/"):
        return
    for entry in list(page.findall(desc)):
        if entry[0]["ids"] and not isinstance(entry.parent, desc_content):  # a method stands in its class
            name = entry[0]["fullname"]
            part = nodes.section("", nodes.title(name, name), ids=[f"name-{entry[0]['ids'][0]}"], names=[])
            entry.replace_self(part)
            part += entry


def _formula(translator: HTML5Translator, node: nodes.Element) -> None:
    translator.body.append(
        convert(node.astext(), display="block" if isinstance(node, nodes.math_block) else "inline")
    )
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Formulas become MathML, which browsers draw by themselves: no script to fetch, no LaTeX to install."""
    app.connect("autodoc-process-docstring", _no_type, priority=400)  # before napoleon's 500
    app.connect("doctree-read", _headings, priority=400)  # before Sphinx lists headings, at 500
    app.add_post_transform(_OthersAsText)
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
