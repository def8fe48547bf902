"""Many processes on this machine, clients pinned to them."""
