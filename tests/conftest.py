"""Tests run side by side; each keeps to one core."""

import torch

torch.set_num_threads(1)
