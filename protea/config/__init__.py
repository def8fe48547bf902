"""From an experiment file to frozen dataclasses and back.

experiment.py  an experiment, and the files it is read from
sections.py    its sections: data, evaluation, engine, faults, limits, checkpoint
families.py    which client has which architecture
toml.py        tables of settings, checked name by name and value by value
registry.py    from a name to the class it stands for: methods, sources, filters, ...
words.py       the words for rules, protocols and measures
units.py       sizes and percentages as people write them
"""
