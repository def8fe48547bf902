"""A site's secret seed, from which it draws its weights, batches and splits: nobody else can draw the same."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from protea.core.errors import ConfigError
from protea.core.files import sync_folder, temporary_path, write_private

BYTES = 32


def secret_seed(path: Path) -> bytes:
    """Read the seed in a file that only its owner can read; draw one where there is none."""
    if not path.exists():
        with temporary_path(path, shared=True) as drawn:
            write_private(drawn, secrets.token_hex(BYTES).encode() + b"\n")
            with suppress(FileExistsError):
                os.link(drawn, path)  # unlike a rename, it never replaces what another process has just drawn
        sync_folder(path.parent)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ConfigError(
            f"{path} can be read by others, and whoever has it can rebuild this site's untrained model.  Take their "
            f"rights away: chmod 600 {path}"
        )
    try:
        found = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if len(found) != BYTES:
        raise ConfigError(f"{path} must hold {2 * BYTES} hexadecimal digits, and has {2 * len(found)}.")
    return found


def seed_of_task(secret: bytes, task: str) -> bytes:
    """Derive the seed for one task, by its checksum: in another task, no draw, and no noise, comes again."""
    return hashlib.blake2b(task.encode(), key=secret, digest_size=BYTES, person=b"protea-site").digest()
