"""Imported once by the forkserver, so that every worker process starts with it in place."""

import protea.recipe
import protea.worker  # noqa: F401
