"""Architectures, and how each becomes a model of body, adapter and head."""
