"""The key by which a SuperLink knows a node, and what it was called there the last time."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_private_key,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs

from protea.core.errors import ConfigError
from protea.core.files import write_bytes


def node_key(folder: Path, given: Path | None) -> ec.EllipticCurvePrivateKey:
    """Read the key in the file ``given``; without one, the key in ``folder``, which is made if it is not there."""
    path = given or folder / "node.key"
    if given is None and not path.exists():
        private, _ = generate_key_pairs()
        write_bytes(path, private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        path.chmod(0o600)
    try:
        found = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a key that can be read: {error}") from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} has a key of another kind than a site's: an elliptic curve was expected.")
    return found


def known_node(folder: Path) -> int | None:
    """Give the id that a SuperLink gave to the node of this folder the last time; ``None`` if there is none."""
    try:
        found = json.loads((folder / "node.json").read_bytes())["node"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None
