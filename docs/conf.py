"""How Sphinx makes the site of these pages: ``make docs``, then open docs/_build/html/index.html."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import protea

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Protea"
author = "Protea contributors"
project_copyright = author
release = version = protea.__version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Protea {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
pygments_style, pygments_dark_style = "friendly", "github-dark"

myst_heading_anchors = 4  # a link to a heading is its words in small letters, as on code hosts
smartquotes = False

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
add_module_names = False

ROOT = Path(__file__).parents[1]
# Where the site has a page for what the repository has as a file or folder outside of docs/.
PAGES = {
    "../README.md#methods": "methods/index.md",
    "../examples/hospital/README.md": "hospital.md",
    "../examples": "../examples/own_metric.py",
    "methods/": "methods/index.md",
}


def site_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn links to the repository's own pages into links to those of the site."""
    for old, new in PAGES.items():
        source[0] = source[0].replace(f"]({old})", f"]({new})")


def included_links(app: Sphinx, path: Path, page: str, source: list[str]) -> None:
    """Do the same in pages that are included from elsewhere: README, CHANGELOG, CONTRIBUTING, the hospitals."""
    above = "../" * app.env.docname.count("/")
    folder = (Path(app.srcdir) / path).parent

    def moved(link: re.Match[str]) -> str:
        target, mark, anchor = link[1].partition("#")
        there = (folder / target).resolve()
        if target == "CONTRIBUTING.md":
            return f"]({above}contributing.md)"
        if there.is_relative_to(ROOT / "docs"):
            inside = there.relative_to(ROOT / "docs").as_posix()
            return f"]({above}{inside}{'/index.md' if there.is_dir() else ''}{mark}{anchor})"
        return f"]({above}../{there.relative_to(ROOT).as_posix()})" if there.is_file() else link[0]

    source[0] = re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", moved, source[0])


def fields(kind: type) -> list[str]:
    """List the fields of a dataclass with their types, defaults, and the comments after them, which document them."""
    text = textwrap.dedent(inspect.getsource(kind))
    lines, body = text.splitlines(), ast.parse(text).body[0]
    assert isinstance(body, ast.ClassDef)
    found = []
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id[0] == "_":
            continue
        words = ast.unparse(node.annotation)
        if words.startswith("ClassVar"):
            continue
        words = re.sub(r"^Annotated\[(\w+),.*\]$", r"\1", words)
        value = "" if node.value is None else ast.unparse(node.value)
        value = re.sub(r"^field\(default_factory=(\w+)\)$", r"\1()", value)
        value = re.sub(r"^choice_of\(.*registry\.default\('\w+', ('\w+')\).*$", r"\1", value)
        value = re.sub(r"^list_of\(.*$", "()", value)
        _, _, comment = lines[node.end_lineno - 1][node.end_col_offset :].partition("#")
        shown = f"``{node.target.id}: {words}{f' = {value}' if value else ''}``"
        found.append(f"- {shown}{f' · {comment.strip()}' if comment else ''}")
    return found


def document_fields(app: Sphinx, what: str, name: str, each: Any, options: Any, lines: list[str]) -> None:
    """Add the fields of a dataclass to its docstring."""
    if what == "class" and is_dataclass(each) and (found := fields(each)):
        lines += ["", "**Fields**", "", *found, ""]


def short_signature(
    app: Sphinx, what: str, name: str, each: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str, None] | None:
    """Leave out the signature of a dataclass, whose fields are listed."""
    return ("", None) if what == "class" and is_dataclass(each) else None


def setup(app: Sphinx) -> None:
    app.connect("source-read", site_links)
    app.connect("include-read", included_links)
    app.connect("autodoc-process-docstring", document_fields)
    app.connect("autodoc-process-signature", short_signature)
