"""Examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest
import wanted

ROOT = Path(__file__).parents[1] / "protea"
ROOMS = ("core", "config", "filters")
PATHS = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def module_name(path: Path) -> str:
    return ".".join(("protea", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


@pytest.mark.parametrize("name", [module_name(path) for path in PATHS])
def test_examples_in_docstrings(name: str) -> None:
    if name == "protea.core.private_sgd":
        wanted.extra("privacy")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_core_has_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [finder.find(importlib.import_module(module_name(path))) for path in PATHS if path.parts[-2] == "core"]
    assert sum(bool(test.examples) for tests in found for test in tests) >= 30
