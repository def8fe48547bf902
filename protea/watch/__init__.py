"""The live page: a small web server that follows run directories, read-only.

places.py      the runs, sweeps and federations in some folders
rows.py        a run in one line: state, round, accuracy, time left, warnings
collection.py  all of them, looked at again and again
live.py        what the page draws of the runs that a reader chose
server.py      HTTP: the page, its content, and events when something is new

It reads files alone, and knows nothing of engines and of learning.
"""
