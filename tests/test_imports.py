"""Imports point one way: a room may use itself and the rooms that stand below it."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "protea"

# Top to bottom.  Rooms of one line do not know each other, but for those after ">": each may use what follows it.
ROOMS = """
cli
watch
network | studies | report
runs
engines
clients
federation
filters | evaluation
methods > models > data
config
core
"""


@cache
def ranks() -> dict[str, tuple[int, int]]:
    """Each room's line, and its place in it; rooms side by side have places of their own."""
    found: dict[str, tuple[int, int]] = {}
    for line, rooms in enumerate(ROOMS.split("\n")):
        for place, room in enumerate(rooms.replace("|", ">").split(">")):
            found[room.strip()] = line, place
    return found


def may_use(user: str, used: str) -> bool:
    """Whether one room may import from another."""
    (line, place), (other, there) = ranks()[user], ranks()[used]
    if line != other:
        return line < other
    return user == used or (place < there and "|" not in ROOMS.split("\n")[line])


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """The modules below ``protea`` that a file imports, at its top or within a function."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("protea.") for name in found if name.startswith("protea.")}


def test_nothing_lies_in_the_root_of_the_package():
    loose = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert loose == {"__init__.py", "__main__.py", "py.typed"}
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} - {"__pycache__"} == ranks().keys() - {""}


def test_imports_point_one_way():
    wrong = []
    for path in sorted(ROOT.rglob("*/*.py")):
        room = path.relative_to(ROOT).parts[0]
        for name in sorted(imports(path)):
            used = name.split(".")[0]
            if used in ranks() and not may_use(room, used):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def exported(room: str) -> set[str]:
    """The names that a room's ``__init__`` offers to the others."""
    body = parsed(ROOT / room / "__init__.py").body
    return {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_what_a_room_exports_is_taken_from_there():
    offered = {room: exported(room) for room in ranks() if room}
    wrong = []
    for path in sorted(ROOT.rglob("*/*.py")):
        for name in imports(path):
            room, *inner, last = f"{name}.".split(".")[:-1] if "." in name else (name, name)
            if inner and room not in path.parts and last in offered.get(room, ()):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_room_reaches_for_the_private_names_of_another():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted(ROOT.rglob("*/*.py"))
        for name in sorted(imports(path))
        if any(part.startswith("_") for part in name.split(".")) and name.split(".")[0] not in path.parts
    ]
    assert not wrong, "\n".join(wrong)


def defined_types(path: Path) -> tuple[set[str], set[str]]:
    """The public classes that a module defines, and its names for other types."""
    body = parsed(path).body
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    assigned = [node.targets[0] for node in body if isinstance(node, ast.Assign)]
    names = {target.id for target in assigned if isinstance(target, ast.Name) and target.id[:2].istitle()}
    return {name for name in classes if not name.startswith("_")}, names


def test_no_two_public_classes_share_a_name():
    places, classes = defaultdict(list), set()
    for path in sorted(ROOT.rglob("*.py")):
        own, others = defined_types(path)
        classes |= own
        for name in own | others:
            places[name].append(str(path.relative_to(ROOT)))
    shared = {name: places[name] for name in sorted(classes) if len(places[name]) > 1}
    assert not shared, "\n".join(f"{name}: {', '.join(found)}" for name, found in shared.items())
