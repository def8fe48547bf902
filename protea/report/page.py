"""The report as one HTML page that works offline and asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from string import Template

from protea.report.content import Plain


def page(content: Plain) -> str:
    """The page.  Its security policy lets nothing run but its own script, and nothing be fetched."""
    script, style = text("draw.js") + text("figures.js") + text("page.js"), text("page.css")
    return Template(text("template.html")).substitute(
        script=script,
        script_hash=digest(script),
        style=style,
        style_hash=digest(style),
        content=embedded(content),
    )


def embedded(content: Plain) -> str:
    """The content as JSON in which no HTML parser finds the end of its element, whatever names users gave."""
    plain = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def text(name: str) -> str:
    """The content of a file beside this module."""
    return files("protea.report").joinpath(name).read_text(encoding="utf-8")


def digest(code: str) -> str:
    """The hash by which a security policy names a script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
