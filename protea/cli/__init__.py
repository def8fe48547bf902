"""The ``protea`` command: a file for each subcommand, and the displays, lists and trackers that they use."""
