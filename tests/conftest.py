"""Tests run side by side; each keeps to one core, and draws the same whichever tests ran before it."""

import pytest
import torch
from typed import typed

__all__ = ["typed"]  # a fixture

torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    torch.manual_seed(0)
