"""Architectures, and how any of them becomes a model of body, adapter and head."""
