"""The round loop, and what it needs.

loop.py      one round after another; the file to read first
plan.py      the settings that the round loop needs
round.py     the state of the round being played
jobs.py      what clients are asked, what they reply, and what carries both
sampling.py  which clients take part in a round
faults.py    simulated clients that drop out or are late, drawn by chance
uploads.py   which uploads reach the method
ledger.py    bytes and refusals, added up over rounds
record.py    the results of a round in plain values; reads and writes metrics.jsonl
"""
