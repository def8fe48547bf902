"""Where clients live: how one is built, what runs a job on it, and what keeps its state."""
