"""A run: from an experiment to its records, models and tables, in memory or in a directory.

run.py            the object: iterate over it, ask it for models and predictions
setup.py          what a run needs of the thing that it runs
simulation.py     an experiment on this machine or a cluster; prepare.py loads its data and builds every model once
observers.py      those who are told what goes on
directory.py      the files of a run
checkpoint.py     the state after a round, vouched for by checksums
trained.py        what was learned: models, predictions, prototypes
result.py         what a run gave, typed
summary.py        the headline numbers, and how they were made
warnings.py       signs that a run is not well
reader.py         a run as its directory tells it, without torch
follower.py       a run that goes on, read again and again
compare.py        methods side by side
gain.py           by how much a run is better than another, client by client; bootstrap.py draws the intervals
beside.py         the gains of runs on one split, kept in their summaries
settings_diff.py  what sets runs apart
export.py         all numbers in long form
model_folder/     a client's model as a folder to take away
tables.py         records as rows
environment.py    versions and machine
"""
