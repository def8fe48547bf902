"""Scikit-learn's handwritten digits, read once in a process: sites that tests make ask for them again and again."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

from sklearn import datasets


@cache
def read() -> Any:
    return datasets.load_digits()


def load_digits(*, return_X_y: bool = False) -> Any:  # noqa: N803
    """As scikit-learn's function of that name; what is given may be changed."""
    found = deepcopy(read())
    return (found.data, found.target) if return_X_y else found
