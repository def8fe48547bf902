"""How accuracy is measured.

An accuracy is a function of a rule (which scores answer), a scope (a client's own test
part, the test set that all share, a model on the server), a weighting over clients, and a
protocol (which round's numbers are reported).  All are computed, stored and named.

    counts.py       what a rule answered, as counts, and the measures that follow from them
    rules.py        the ways in which a client can answer, and the protocol of the user's own
    blend.py        the rule that weighs the others by what they tell of held-out samples
    metrics.py      metrics of the user's own
    client_side.py  one pass over a client's data, for every rule at once
    examination.py  what that found, as it travels
    pull.py         how hard a method pulls features, beside cross entropy
    server_side.py  from the clients' counts to a round's scores
    scores.py       a round's scores as plain numbers, without torch
    protocols.py    from the rounds' scores to the number that is reported
"""
