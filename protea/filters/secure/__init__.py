"""Secure sums: the server learns the sum of all uploads, and no single one.  The protocol is in docs/secure-sums.md.

fixed_point.py   numbers as whole multiples of a step, modulo 2^32 or 2^64
masks.py         keys that two clients agree on, masks drawn from them, sealed messages between clients
shares.py        Shamir's secret sharing
sums.py          from an upload to the sums that its method needs, and from the sum back to an upload
state.py         what a client keeps between the steps
vouching.py      signatures of the list of clients and keys, where clients know each other's long-term keys
client_side.py   the steps of a client
server_side.py   the steps of the server
"""
