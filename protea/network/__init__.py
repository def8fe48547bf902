"""Federations of organisations: a coordinator, and sites that keep their data and their models.

    task.py         what all parties agree on: task.toml
    trust/          certificates and keys; bundles, by which a coordinator invites a site
    coordinator/    its directory, the rounds from its side, what its screen shows
    site/           its directory, what it answers and writes down, what would leave, its processes
    public_data.py  inputs that all parties have

Flower carries the messages; its types are in :mod:`protea.engines.flower` only.
"""
