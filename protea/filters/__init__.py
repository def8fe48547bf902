"""What happens to an upload between a client's pack and the server's aggregate.

    client:  method.local_update -> pack -> filters (in order) -> bytes
    server:  bytes -> well-formed? small enough? -> filters (reversed) -> declared? finite? -> method.check -> aggregate

    base.py      what a filter is, and the two ends of the pipeline
    clip.py      class vectors that are longer than allowed are shortened
    quantize.py  fewer bytes for each number
    secure_sum.py  the server learns the sum of all uploads, and no single one; its parts are in secure/

To add a filter, write one file here, or one class anywhere, and name it in ``[[filters]]``: docs/extending.md.
"""
