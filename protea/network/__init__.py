"""Federations of organisations: a coordinator, and sites that keep their data and their models.

    task.py         what all parties agree on: task.toml
    keys.py         certificates and keys
    bundle.py       what a coordinator gives a site, in one file
    home.py         a coordinator's directory
    status.py       what goes on, for whoever shows it
    coordinator.py  the rounds, from a coordinator's side
    data.py         samples of a site, and those that all parties have
    site.py         a site's directory: its model, its data, its state
    trial.py        one round at a site with nobody listening: what would leave
    desk.py         what a site answers, and what it writes down about that
    join.py         a site's processes

Flower carries the messages; its types are in :mod:`protea.engines.flower` only.
"""
