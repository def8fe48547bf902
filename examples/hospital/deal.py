"""Deals out a public table of tumours to three hospitals: files as they would lie there already.

    python deal.py NORTH SOUTH COAST

The table is the Wisconsin breast cancer data that scikit-learn brings along: 569 cases, 30 measurements of each.  South
treats and sees mostly malignant tumours, Coast screens and sees mostly benign ones, North sees both.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

NAMES = ("malignant", "benign")
CASES = {"north": (110, 150), "south": (80, 57), "coast": (22, 150)}  # of each class

if __name__ == "__main__":
    north, south, coast = map(Path, sys.argv[1:])
    tumours = load_breast_cancer()
    rng = np.random.default_rng(1)
    piles = [rng.permutation(np.flatnonzero(tumours.target == label)) for label in (0, 1)]
    rows = {}
    for site, counts in CASES.items():
        parts = [pile[:count] for pile, count in zip(piles, counts, strict=True)]
        piles = [pile[count:] for pile, count in zip(piles, counts, strict=True)]
        rows[site] = rng.permutation(np.concatenate(parts))

    with (north / "patients.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([*tumours.feature_names, "diagnosis"])
        table.writerows([*map(float, tumours.data[row]), NAMES[tumours.target[row]]] for row in rows["north"])
    np.savez(south / "data.npz", x=tumours.data[rows["south"]], y=tumours.target[rows["south"]])
    for row in rows["coast"]:
        folder = coast / "cases" / NAMES[tumours.target[row]]
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{row:03d}.npy", tumours.data[row])

    common = sum(map(max, CASES.values())) / sum(map(sum, CASES.values()))
    print(f"Dealt out {len(tumours.target)} cases.  Always answering a hospital's commonest class: {common:.1%} right.")
