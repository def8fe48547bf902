"""The ``protea`` command.  Worker processes get ready beside it, from the first moment."""

from __future__ import annotations

import sys

from protea.launch import warm

TRAINING = {"run", "resume", "sweep", "reproduce"}


def main() -> None:
    if TRAINING & set(sys.argv[1:2]) and "--help" not in sys.argv:
        warm()
    from protea import cli  # which imports torch: seconds

    cli.main()


if __name__ == "__main__":
    main()
