"""Data of your own: two arrays that a script already has, or a table in a file.

    python examples/own_data.py

The table, wine.csv, has a header line, a column ``cultivar``, and numbers in all others.  With it, exp.toml
does the same as this script, by ``protea run exp.toml``:

    rounds = 10
    clients = 4
    [data]
    source = { kind = "csv", path = "wine.csv", label = "cultivar", standardise = true }
    partition = { kind = "dirichlet", alpha = 0.5 }
    [models]
    dim = 32
"""

from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

import protea
from protea.data import Arrays, Dirichlet
from protea.models import Models

if __name__ == "__main__":
    wine = load_wine()
    x = StandardScaler().fit_transform(wine.data)  # (178, 13): float64 will do; bytes would be images
    source = Arrays(x, wine.target, names=("Barolo", "Grignolino", "Barbera"))

    result = protea.run(
        protea.Experiment(
            rounds=10,
            clients=4,
            data=protea.Data(source=source, partition=Dirichlet(alpha=0.5)),
            models=Models(dim=32),
        )
    )
    print(f"accuracy {result.accuracy:.1%}, of the commonest class {result.summary['majority']:.1%}")
