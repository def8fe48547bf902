"""North: a table in a file, and an architecture that Protea brings along."""

from pathlib import Path

from protea.data.sources.csv_table import Csv

HERE = Path(__file__).parent


def model():
    return "mlp"  # protea list architectures


def data():
    return Csv(str(HERE / "patients.csv"), label="diagnosis")  # as measured; site.toml says standardise
