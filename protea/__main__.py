"""The entry point of the ``protea`` command."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from protea.engines.processes.forkserver import start_forkserver

TRAINING = {"run", "resume", "sweep", "reproduce", "demo"}  # commands that start worker processes


def main() -> None:
    """Run the command; the server that forks worker processes is started first, to get ready during the imports.

    SIGTERM ends it like Ctrl-C, with what that says and clears away; the exit code is 143 in the place of 130.
    """
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: the second must not end the clearing away
        stopped.append(number)
        raise KeyboardInterrupt

    if TRAINING & set(sys.argv[1:2]) and "--help" not in sys.argv:
        start_forkserver()
    signal.signal(signal.SIGTERM, stop)
    try:
        from protea.cli import app

        app.main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM if stopped else 130)  # whatever can be gone on with has said so
    except SystemExit:
        if stopped:
            sys.exit(128 + signal.SIGTERM)
        raise


if __name__ == "__main__":
    main()
