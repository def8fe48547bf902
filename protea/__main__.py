"""The entry point of the ``protea`` command."""

from __future__ import annotations

import sys

from protea.engines.processes.forkserver import start_forkserver

TRAINING = {"run", "resume", "sweep", "reproduce"}  # commands that start worker processes


def main() -> None:
    """Run the command; the server that forks worker processes is started first, to get ready during the imports."""
    if TRAINING & set(sys.argv[1:2]) and "--help" not in sys.argv:
        start_forkserver()
    try:
        from protea.cli import app

        app.main()
    except KeyboardInterrupt:
        sys.exit(130)  # whatever can be gone on with has said so


if __name__ == "__main__":
    main()
