"""What is wrong with a file that is not as declared, in one line: pydantic's own words are for programmers."""

from __future__ import annotations

from pydantic import ValidationError

LONGEST = 120  # characters of a place in a file that are repeated


def complaint(error: ValueError, whole: str = "the file") -> str:
    """Return the first thing that is wrong, and where it is; ``whole`` names the place if it is not inside.

    >>> from pydantic import TypeAdapter
    >>> try:
    ...     TypeAdapter(dict[str, int]).validate_json('{"rounds": "many"}')
    ... except ValueError as error:
    ...     complaint(error)
    'rounds: input should be a valid integer, unable to parse string as an integer'
    """
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))[:LONGEST]
    shown = where if where.isprintable() else ascii(where)
    said = str(first["msg"])
    return f"{shown or whole}: {said[:1].lower()}{said[1:]}"
