"""Coast: one file for each case, read by a torch Dataset, and a body to which Protea adds the head."""

from pathlib import Path

import numpy as np
from torch import nn
from torch.utils.data import Dataset

HERE = Path(__file__).parent


class Cases(Dataset):
    """Pairs of measurements and the name of a class: the folder in which the case lies."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/*.npy"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int):
        return np.load(self.files[place]).astype(np.float32), self.files[place].parent.name


def model():
    return nn.Sequential(
        nn.Unflatten(1, (3, 10)),  # ten measurements: their means, their errors, their worst values
        nn.Conv1d(3, 16, kernel_size=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(160, 24),
        nn.Tanh(),
    )


def data():
    return Cases(HERE / "cases")
