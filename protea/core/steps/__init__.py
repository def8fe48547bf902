"""How one training step is made fast."""
