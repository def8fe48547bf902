"""The ``protea`` command.  Worker processes get ready beside it, from the first moment."""

from __future__ import annotations

import sys

from protea.engines.processes.forkserver import start_forkserver

TRAINING = {"run", "resume", "sweep", "reproduce"}


def main() -> None:
    if TRAINING & set(sys.argv[1:2]) and "--help" not in sys.argv:
        start_forkserver()
    from protea.cli import app

    app.main()


if __name__ == "__main__":
    main()
