"""pyproject.toml declares what the package imports, and nothing else."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PACKAGES = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "google": "protobuf",
    "grpc": "flwr",
    "py_mini_racer": "mini-racer",
    "vl_convert": "vl-convert-python",
}  # modules that come in a package of another name
INDIRECT = {"tensorboard"}  # needed by torch


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement(text: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", text)
    assert found is not None
    return normal(found[0])


def declared() -> set[str]:
    extras = {
        name: needs
        for name, needs in PROJECT["optional-dependencies"].items()
        if name not in ("dev", "docs", "package", "all")
    }
    return {
        requirement(text) for text in [*PROJECT["dependencies"], *(text for each in extras.values() for text in each)]
    }


@cache
def imported() -> dict[str, set[str]]:
    """The third-party packages that the package imports, by statement or by name, and where."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "protea").rglob("*.py")):
        for module in modules(ast.parse(path.read_text())):
            if module in sys.stdlib_module_names or module in ("protea", "__future__"):
                continue
            found.setdefault(normal(PACKAGES.get(module, module)), set()).add(str(path.relative_to(ROOT)))
    return found


def modules(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            given = node.args[0]
            called = node.func.id in ("import_module", "import_quietly", "find_spec")
            if called and isinstance(given, ast.Constant) and isinstance(given.value, str):
                names.add(given.value)
    return {name.split(".")[0] for name in names}


def test_every_import_is_declared():
    missing = {name: where for name, where in imported().items() if name not in declared()}
    assert not missing


def test_nothing_is_declared_that_is_not_imported():
    assert declared() - imported().keys() == INDIRECT


def test_what_every_run_needs_is_in_no_extra():
    """All that core imports, but for opacus within the functions of training.dp, which says so if it is missing."""
    plain = {requirement(text) for text in PROJECT["dependencies"]}
    core = {name for name, where in imported().items() if any(path.startswith("protea/core/") for path in where)}
    assert core - {"opacus"} <= plain
    for path in sorted((ROOT / "protea" / "core").rglob("*.py")):
        whole = ast.parse(path.read_text()).body
        top = ast.Module([node for node in whole if not isinstance(node, ast.FunctionDef | ast.ClassDef)], [])
        assert "opacus" not in modules(top), path
