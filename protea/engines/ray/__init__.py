"""Clients in actors of Ray, on this machine or on a cluster.

    cluster.py   the Ray that is used: one by address, or one that is started here, on loopback
    actor.py     what runs in an actor: a worker
    handle.py    an actor as the engine sees it
    engine.py    the engine: actors, data on every node, jobs and state

The nodes of a cluster need share no file system.  The data come to a node once, in parts
through Ray's object store, and then lie there in one file that all its actors map.  They do
not stay in the object store, since that is memory which Ray would have to keep for the whole
run, and since a mapped file gives tensors without a copy.  Clients' state comes back to the
driver when it is saved, and goes from there to where a client lives next.

What crosses the network between our own processes: jobs, replies and state as safetensors
bytes, and once per run the plan by which clients are built, by Ray's own serialisation.
"""

from __future__ import annotations

import os

from protea.core.errors import ConfigError
from protea.core.shell import install_command, install_hint

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray looks at them
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

try:
    import ray
except ImportError:
    raise ConfigError(f"engine.name=ray needs Ray, which is not installed.  Type: {install_hint('ray')}") from None

VERSION = "2.55.1"
if ray.__version__ != VERSION:
    raise ConfigError(
        f"Ray {ray.__version__} is installed; this version of Protea works with {VERSION}.  "
        f"Type: {install_command(f'ray=={VERSION}')}"
    )
