"""Commands beyond `run`, one file each."""
