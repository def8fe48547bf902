"""The round loop, and what it needs.

loop.py      one round after another; the file to read first
plan.py      what a federation goes by
round.py     one round while it goes on
jobs.py      what clients are asked, what they reply, and what carries both
sampling.py  who takes part
faults.py    who drops out or is late, by chance
uploads.py   which uploads reach the method
ledger.py    bytes and refusals, added up over rounds
record.py    a round in plain values
"""
