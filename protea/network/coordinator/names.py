"""The names of sites in what is said of them: the round loop knows clients by number, people know sites by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence


def naming(names: Callable[[], Sequence[str]]) -> Callable[[str], str]:
    """Return what puts the names of sites in the place of their numbers; ``names`` gives those invited by now.

    >>> naming(lambda: ["north", "south"])("client 1, round 3: it did not answer.")
    'south, round 3: it did not answer.'
    """

    def named(text: str) -> str:
        known = names()

        def name(found: re.Match[str]) -> str:
            number = int(found[1])
            return known[number] if number < len(known) else found[0]

        return re.sub(r"\b[Cc]lient (\d{1,9})\b", name, text)

    return named
