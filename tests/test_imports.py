"""Imports point one way: each module may use only what stands below it."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "protea"

# Top to bottom.  Within a line modules may use each other; a folder stands for all in it.
LAYERS = [
    ["__main__"],
    ["cli"],
    ["commands"],
    ["network"],
    ["reproduce"],
    ["display", "preview", "listing"],
    ["search"],
    ["sweep", "trackers"],
    ["experiment"],
    ["papers"],
    ["config", "runs.checkpoint"],
    ["federation"],
    ["gate"],
    ["health", "faults"],
    ["record"],
    ["engines.inline", "engines.processes", "engines.ray", "engines.flower", "engines.station"],
    ["engines.pinned", "engines.pool", "engines.preload"],
    ["worker", "recipe", "engines.scripted"],
    ["shelf"],
    ["evaluation"],
    ["methods"],
    ["method", "state"],
    ["engines", "engines.wire"],
    ["client", "public"],
    ["server"],
    ["layout"],
    ["models", "data", "training", "descent", "losses", "geometry", "weights", "lowrank", "memory", "devices"],
    ["trainable"],
    ["prototypes"],
    ["payload"],
    ["tables"],
    ["report"],
    ["runs.compare", "runs.export"],
    ["runs.alike"],
    ["runs.past"],
    ["rng", "plugins", "runs.store", "units", "launch"],
    ["errors"],
]


def layer(module: str) -> int:
    for length in range(module.count(".") + 1, 0, -1):
        head = ".".join(module.split(".")[:length])
        for number, names in enumerate(LAYERS):
            if head in names:
                return number
    raise AssertionError(f"{module} has no place in LAYERS")


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("protea.") for name in found if name.startswith("protea.")}


def modules() -> dict[str, Path]:
    paths = (p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")
    return {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}


def test_imports_point_one_way() -> None:
    known = modules()
    wrong = []
    for module, path in known.items():
        for name in imported(path):
            parts = name.split(".")
            target = next((t for n in range(len(parts), 0, -1) if (t := ".".join(parts[:n])) in known), None)
            if target is not None and layer(target) < layer(module):
                wrong.append(f"{module} imports {target}")
    assert not wrong, wrong


def test_methods_know_no_engine_and_no_run() -> None:
    for module, path in modules().items():
        if module.startswith("methods."):
            tops = {name.split(".")[0] for name in imported(path)}
            assert not tops & {
                "engines",
                "runs",
                "federation",
                "worker",
                "config",
                "experiment",
                "cli",
                "data",
            }, module


def test_the_store_of_runs_knows_nothing_of_learning() -> None:
    assert imported(ROOT / "runs" / "store.py") <= {"errors.CheckpointError", "errors.ConfigError"}
    assert "torch" not in (ROOT / "runs" / "store.py").read_text().replace("safetensors", "")
