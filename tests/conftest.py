"""Tests run side by side; each keeps to one core."""

import torch
from typed import typed

__all__ = ["typed"]  # a fixture

torch.set_num_threads(1)
