"""A coordinator's side of a federation over a network."""
