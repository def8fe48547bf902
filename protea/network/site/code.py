"""The code that a site brings: ``site.py``, which is run here and nowhere else."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from protea.core.errors import ConfigError, ProteaError

MODULE = "protea_site"


def load_code(path: Path) -> Any:
    """Run ``site.py``, and give its module; raise :class:`ConfigError` unless it has ``model()`` and ``data()``."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    folder = str(path.parent.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that site.py can import what lies beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    for name in ("model", "data"):
        if not callable(getattr(module, name, None)):
            raise ConfigError(f"{path} has no function {name}().  protea site init writes an example of both.")
    return module


def call_with(function: Callable[..., Any], given: Mapping[str, Any], where: str) -> Any:
    """Call a function with those of the given values that it has parameters for; its errors begin with ``where``."""
    wanted = inspect.signature(function).parameters
    try:
        return function(**{key: value for key, value in given.items() if key in wanted})
    except ProteaError:
        raise
    except Exception as error:
        raise ConfigError(f"{where} fails: {type(error).__name__}: {error}") from error
