"""Data of your own: two arrays that a script already has, or a table in a file.

    python examples/own_data.py

Where the data are a table, tumours.csv, with a header line, a column ``diagnosis``, and numbers in all others,
an experiment file does the same, by ``protea run exp.toml``:

    rounds = 5
    clients = 4
    [data]
    source = { kind = "csv", path = "tumours.csv", label = "diagnosis", standardise = true }
    partition = { kind = "dirichlet", alpha = 1.0 }
    [models]
    dim = 32
    [training]
    optimizer = "adam"
    lr = 0.003
"""

from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import protea
from protea.config.families import Models
from protea.core.training import Training
from protea.data import Arrays, Dirichlet

if __name__ == "__main__":
    tumours = load_breast_cancer()
    x = StandardScaler().fit_transform(tumours.data)  # (569, 30) numbers; arrays of bytes would be images
    y = tumours.target  # (569,) labels; names would do as well

    experiment = protea.Experiment(
        rounds=5,
        clients=4,
        data=protea.Data(source=Arrays(x, y, names=("malignant", "benign")), partition=Dirichlet(alpha=1.0)),
        models=Models(dim=32),
        training=Training(optimizer="adam", lr=0.003),
    )
    result = protea.run(experiment)
    print(f"accuracy {result.accuracy:.1%}, of the commonest class {result.summary['majority']:.1%}")
