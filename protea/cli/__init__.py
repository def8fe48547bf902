"""The ``protea`` command: one file for each of its commands; displays, lists and trackers beside them."""
