"""What happens to an upload between a client's pack and the server's aggregate.

    client:  method.local_update -> pack -> filters (in order) -> bytes
    server:  bytes -> well-formed? small enough? -> filters (reversed) -> declared? finite? -> method.check
             -> filters that look at all uploads together -> aggregate

    base.py      what a filter is, and the ends of the pipeline
    clip.py      class vectors that are longer than allowed are shortened
    quantize.py  fewer bytes for each number
    noise.py     Gaussian noise on class sums and counts
    robust.py    class vectors of all clients side by side: the common part of the following
    bound.py     what is out of proportion is pulled in; on by default (limits.bound)
    centres.py   median, trimmed mean, geometric median
    multi_krum.py, cosine.py  vectors without neighbours, or that turned away, are replaced
    secure_sum.py  the server learns the sum of all uploads, and no single one; its parts are in secure/

To add a filter, write one file here, or one class anywhere, and name it in ``[[filters]]``: docs/extending.md.
"""
