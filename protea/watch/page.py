"""The live page: the scripts and styles of a report, with a list of runs in front, and no content of its own."""

from __future__ import annotations

from string import Template

import protea
from protea.report.page import SCRIPTS, digest, drawing_style, text


def live_page() -> tuple[str, str]:
    """The page, and its security policy: nothing runs but its own scripts, nothing is asked for but from here."""
    scripts = [text(name) for name in SCRIPTS] + [text("live.js", "protea.watch")]
    style = text("page.css") + text("live.css", "protea.watch")
    allowed = " ".join(f"'{digest(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src '{digest(style)}' {drawing_style()}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    page = Template(text("live.html", "protea.watch")).substitute(
        scripts="\n".join(f"<script>{script}</script>" for script in scripts), style=style, version=protea.__version__
    )
    return page, policy
