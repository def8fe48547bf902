"""The table of a comparison that has a column for every answering rule."""

from __future__ import annotations

from protea.runs.compare import Comparison

NAMES = {  # above narrow columns
    "method": "own rule",
    "head_own": "head*",
    "global_prototypes": "global",
    "global_prototypes_own": "global*",
    "local_prototypes": "local",
}
WORDS = [
    "own rule: what the method's paper evaluates.  head: the classifier.  global, local: the nearest global prototype, "
    "the nearest of the client's own.  *: among the client's own classes.  blend: all of these, weighed on held-out "
    "samples of each client."
]


def columns(found: Comparison) -> dict[str, list[str]]:
    """Format means over seeds in %, by the name of the column; a dash where a method has no such rule."""
    cells = {"method": [row.label for row in found.rows]}
    for rule, means in found.by_rule.items():
        spreads = [means.get(row.label) for row in found.rows]
        cells[NAMES.get(rule, rule)] = ["-" if each is None else f"{100 * each.mean:.2f}" for each in spreads]
    return cells
