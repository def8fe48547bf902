"""Partitions: which client has which samples.

``algorithms`` has the functions, ``schemes`` the settings that call them, ``pfllib`` the generator of PFLlib and
HtFLlib, ``file`` partitions that were saved, ``split`` the split of a client's samples into training, validation and
test parts.
"""
