"""A tracker of your own: it is fed all numbers of every round, by name.

    PYTHONPATH=examples protea run exp.toml --log own_tracker:TextFile

where exp.toml is any experiment, such as:

    rounds = 2
    clients = 3
    [data]
    samples = 300
    [models]
    family = "tiny_mlp"
    dim = 16
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import protea
from protea.cli.trackers import Tracker


class TextFile(Tracker):
    def open(self, run: protea.Run, directory: Path) -> None:
        self.file = (directory / "numbers.txt").open("a", encoding="utf-8")

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():  # such as test/method/weighted
            self.file.write(f"{round} {name} {value}\n")

    def close(self, run: protea.Run, accuracy: float | None) -> None:  # None for a run that did not come to its end
        self.file.close()


if __name__ == "__main__":
    small = {"data": protea.Data(samples=300), "models": protea.Models("tiny_mlp", dim=16)}
    with tempfile.TemporaryDirectory() as folder:
        protea.run(protea.Experiment(rounds=2, clients=3, **small), Path(folder, "run"), observers=[TextFile()])
        print(f"{len(Path(folder, 'run', 'numbers.txt').read_text(encoding='utf-8').splitlines())} numbers")
