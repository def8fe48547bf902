"""The numbers of long.md: choose fields, collect finished runs, and write the tables of the page.

python docs/results/long.py chosen runs/long/choose/cifar10 examples/long/chosen/cifar10.txt
python docs/results/long.py collect runs/long      # its folders table, curve and ablation -> data/runs.parquet
python docs/results/long.py page                   # data/runs.parquet -> the tables of long.md
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from protea.config import registry
from protea.core.errors import ConfigError
from protea.core.files import write_text
from protea.runs.reader import RunReader, find

CHOICES = {  # the field that is chosen for each method
    "fedproto": "pull", "fedtgp": "pull", "fedsa": "pull", "protonorm": "scale", "fedpagr": "temperature",
}  # fmt: skip


def chosen(folder: Path) -> str:
    """Say what is best on validation samples in the last round, as arguments of a sweep; of equal ones, the default."""
    best: dict[str, tuple[float, bool, str]] = {}
    for path in find([folder]):
        run = RunReader.read(path, clients=False)
        if run.summary is None:
            raise ConfigError(f"{path} has not ended, so there is nothing to choose among yet.  Call the stage again.")
        name = run.method.partition("@")[0]
        field = CHOICES.get(name, "")
        value = run.config["method"].get(field)
        usual = run.method == "local" or value == getattr(registry.find("methods", name)(), field, None)
        words = f"method.name={run.method}" if name == "local" else f"{name}:method.{field}={value:g}"
        score = (run.rounds[-1].validation["method"].weighted, usual, words)
        best[name] = max(score, best.get(name, score))
    return " ".join(words for _, _, words in best.values())


def main(arguments: Sequence[str]) -> None:
    """Do what the first argument says: chosen, collect or page."""
    match arguments:
        case ["chosen", folder, file]:
            write_text(Path(file), chosen(Path(folder)) + "\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
