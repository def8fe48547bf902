"""Engines carry jobs to clients and replies back.  A method cannot tell them apart."""
