"""Pages of which a script writes a part: what stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``."""

from __future__ import annotations

from collections.abc import Mapping

from protea.core.errors import ConfigError


def filled(page: str, parts: Mapping[str, str], where: str) -> str:
    """Return a page with each part, by its name, between its marks; :class:`ConfigError` where a mark is missing.

    >>> filled("a<!-- x: begin -->old<!-- x: end -->b", {"x": "new"}, "page.md").split()
    ['a<!--', 'x:', 'begin', '-->', 'new', '<!--', 'x:', 'end', '-->b']
    """
    for name, text in parts.items():
        before, begin, rest = page.partition(f"<!-- {name}: begin -->")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        if not begin or not end:
            raise ConfigError(f"{where} lacks the marks of {name!r}, between which a table should stand.")
        page = f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"
    return page
