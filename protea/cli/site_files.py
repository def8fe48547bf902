"""The files that ``protea site init`` writes into a new site's directory."""

from __future__ import annotations

import datetime as dt

CODE = '''"""What this site brings: its model and its data.  Both stay here."""

from pathlib import Path

import numpy as np
from torch import nn

HERE = Path(__file__).parent


def model():
    """Any nn.Module that maps a batch of samples to class scores or to features, or an architecture's name."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())


def data():
    """Inputs and labels: (x, y), or (x, y, x_test, y_test); labels are class names of the task, or their numbers.

    A torch Dataset of pairs will do, and so will a table:
        from protea.data.sources.csv_table import Csv
        return Csv(str(HERE / "patients.csv"), label="diagnosis")
    Do not scale here: with standardise = true in site.toml, new samples are scaled in the same way.
    """
    with np.load(HERE / "data.npz") as arrays:
        return arrays["x"], arrays["y"]
'''

SETTINGS = """# Settings of this site.  What is commented out is the default.
# device = "auto"      # or "cpu", "cuda", "mps"
# threads = 1          # of torch
# standardise = true   # each feature to mean 0 and deviation 1, by this site's training samples; kept for predictions
# report = true        # false: tell nothing of how accurate this site's model is; true: what policy.toml allows

# beside = true        # also train a model alone, and show what the federation gives beside it; twice the work

# [split]              # of the samples that data() gives, unless it gives a test part too
# test = 0.2
# validation = 0.1

# [training]           # what differs from the task's training, such as
# batch = 32
# lr = 0.005
"""

POLICY = """# What may leave this site, and what it may be asked.  The site owns this file, and no task can weaken it.
# Every value here is the safe default, which also holds for what is left out.  protea site check shows the effect.

min_samples_per_class = 5   # a class with fewer training samples is not sent, nor reported on
counts = "rounded"          # how many samples are behind a vector: "exact", "rounded" to tens, or "hidden"
report = "accuracy"         # of evaluations: "none", "accuracy" of all classes together, or "full", by class

# Methods that a task may have.  These send class vectors alone, of which a class can be kept back.
methods = [
    "local", "fedproto", "fedtgp", "fedpagr", "fedsa", "protonorm", "feddistill", "fedgh", "fedhp", "fedproc", "fedloo",
    "fedorgp", "fedsaf",
]
gain = false                # true: tell how much better than training alone, if site.toml has beside = true
max_rounds = 100            # of a task: every round tells more
max_upload = "10MB"         # in one round
filters = []                # that a task must have, such as ["clip", "noise"]
peers = []                  # fingerprints of other sites' keys: a secure sum is made with these only
expires = {expires}        # the last day of taking part
prepared_alone = false      # true: data() prepares each record by itself.  Without that, no epsilon is claimed

[refused]                   # values that settings of a task may not have
"method.taken" = ["before"] # prototypes by a model that has not been trained yet

[at_least]                  # smallest values that settings of a task may have
# "quorum" = 3

[at_most]                   # largest values that settings of a task may have
# "training.epochs" = 10
# "filters.clip.norm" = 10.0
"""


def new_policy(today: dt.date) -> str:
    """The policy of a new site, which holds for a year."""
    return POLICY.format(expires=today + dt.timedelta(days=365))
