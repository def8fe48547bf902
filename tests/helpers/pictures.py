"""What a figure's file shows: its marks by the class of their group, the words of its legend, and numbers read off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from protea.report import figures

SVG = "{http://www.w3.org/2000/svg}"


class Picture:
    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)

    def marks(self, name: str) -> list[ElementTree.Element]:
        """The marks in all groups of a class, without groups within them."""
        return [mark for group in self.groups(name) for mark in group.iter() if mark.tag != f"{SVG}g"]

    def groups(self, name: str) -> list[ElementTree.Element]:
        return [group for group in self.root.iter(f"{SVG}g") if group.get("class") == name]

    def words(self, name: str) -> list[str]:
        """The texts in all groups of a class; those of ``key`` are the legend."""
        return [mark.text or "" for mark in self.marks(name) if mark.tag == f"{SVG}text"]

    def axis(self, name: str) -> str:
        """What stands beside an axis."""
        (found,) = (group for group in self.root.iter(f"{SVG}g") if group.get("aria-label") == f"{name}-axis label")
        return found[0].text or ""

    def heights(self, path: str) -> list[float]:
        """The values at the corners of a path, as a reader finds them by the numbers at the vertical axis."""
        (axis,) = (group for group in self.root.iter(f"{SVG}g") if group.get("aria-label") == "y-axis tick label")
        low, high = ((float(tick.text or ""), float(place(tick)[1])) for tick in (axis[0], axis[-1]))
        scale = (high[0] - low[0]) / (high[1] - low[1])
        return [low[0] + scale * (float(y) - low[1]) for _, y in re.findall(r"[ML]([\d.]+),([\d.]+)", path)]


def place(mark: ElementTree.Element) -> Sequence[str]:
    """Where a mark was moved to."""
    found = re.fullmatch(r"translate\(([-\d.]+),([-\d.]+)\).*", mark.get("transform") or "")
    assert found is not None
    return found.groups()


def pictures(content: dict[str, Any], *asked: dict[str, Any]) -> list[Picture]:
    """Draw some figures, all of which have something to show."""
    drawn = figures.drawings(content, asked)
    assert all(svg is not None for svg in drawn)
    return [Picture(svg) for svg in drawn if svg is not None]
