"""The report as one HTML page that works offline and asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from string import Template

from protea.report.content import Plain

# The drawing library as it was published, then our own, in the order in which they need each other.
VENDORED = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
SCRIPTS = (*VENDORED, "draw.js", "charts.js", "figures.js", "files.js", "page.js")  # of the report and of the live page

# The style that Observable Plot writes into each of its pictures, which a security policy must name.
DRAWN = """:where(.chart) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.chart text),
:where(.chart tspan) {
  white-space: pre;
}"""


def page(content: Plain) -> str:
    """The page.  Its security policy lets nothing run but its own scripts, and nothing be fetched."""
    scripts, style = [text(name) for name in (*SCRIPTS, "report.js")], text("page.css")
    return Template(text("template.html")).substitute(
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        script_hashes=" ".join(f"'{digest(script)}'" for script in scripts),
        style=style,
        style_hashes=f"'{digest(style)}' {drawing_style()}",
        content=embedded(content),
    )


def embedded(content: Plain) -> str:
    """The content as JSON in which no HTML parser finds the end of its element, whatever names users gave."""
    plain = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def text(name: str, package: str = "protea.report") -> str:
    """The content of a file beside a module."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def digest(code: str) -> str:
    """The hash by which a security policy names a script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def drawing_style() -> str:
    """The hash of the style that the drawing library writes."""
    return f"'{digest(DRAWN)}'"
