"""Federations over a network, carried by Flower's SuperLink.

    programs.py    start Flower's own program; it ends with the process that started it
    tasks.py       who may take Flower's tasks, and signs of life while one is worked on
    codec.py       our bytes in Flower's records, and back
    door.py        the port that is open to the world: what sites need passes, and nothing else
    admission.py   limits of the door, and which requests are let through
    callers.py     who is connected to it, and how often each may ask
    replies.py     which replies are waited for: no others may be announced
    patient_grid.py  Flower's grid, on which nobody waits for a reply that is never complete
    link.py        a SuperLink, and this process as the server side of a run on it
    node.py        this process as a node of a SuperLink: it asks for messages, and answers them
    node_key.py    the key by which a SuperLink knows a node
    grid.py        the engine: jobs to nodes, replies from them, with deadline and retries
    node_queue.py  which jobs wait, which are on their way, which were lost
    engine.py      a whole deployment on this machine, for experiments with engine.name=flower

Flower carries messages, encrypts them, tells who sent them, and notices who is gone.  It runs
no code of ours: the server and the clients are processes that Protea starts.  The server takes
its run as a task of Flower's Runtime API, the clients talk to the Fleet API.  So nothing that a
coordinator sends is executed at a site, and a client process with torch in place serves all rounds.

Only this folder knows Flower's types.  They are those of one release; see ``pyproject.toml``.
"""

from __future__ import annotations

import logging
import os

from protea.core.errors import ConfigError
from protea.core.shell import install_command, install_hint

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
os.environ.update(QUIET)  # before any of Flower's modules looks at them
for name in ("NO_PROXY", "no_proxy"):  # a site's proxy is for the outside; processes of one machine talk directly
    there = [host for host in os.environ.get(name, "").split(",") if host]
    os.environ[name] = ",".join(dict.fromkeys([*there, "127.0.0.1", "localhost"]))

try:
    import flwr
except ImportError:
    raise ConfigError(
        f"Federations over a network need Flower, which is not installed.  Type: {install_hint('flower')}"
    ) from None

VERSION = "1.41.0"
BACKOFF = 0.02  # seconds
if flwr.__version__ != VERSION:
    raise ConfigError(
        f"Flower {flwr.__version__} is installed; this version of Protea works with {VERSION}.  "
        f"Type: {install_command(f'flwr=={VERSION}')}"
    )
from flwr.supercore.inflatable import inflatable_utils  # noqa: E402  of this version only

# A message is announced before all its parts are there.  Who looks for a part too early would wait a second; twice or
# more in every step of a round.
pull = inflatable_utils.pull_objects
pull.__kwdefaults__ = {**(pull.__kwdefaults__ or {}), "initial_backoff": BACKOFF}
logging.getLogger("flwr").setLevel(logging.ERROR)  # what matters is raised, and told in our words
