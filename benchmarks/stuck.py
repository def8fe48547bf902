"""What one stuck site costs the others: seconds of rounds before and after it is stopped, in one run.

    python benchmarks/stuck.py [20] [14]

A federation of so many tiny sites, as in sites.py.  After half of the rounds one site gets SIGSTOP and stays so.  The
round in which it is met is longer: the coordinator has to see first that it is late.  The last line is JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from statistics import median

import torch
from network import done, round_to, until
from sites import playing


def main(count: str = "20", rounds: str = "14") -> None:
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # imports what training needs, once for all
    stopped = int(rounds) // 2
    with playing(int(count), int(rounds), quorum=int(count) - 1) as (server, sites, metrics):
        until(lambda: done(metrics) >= stopped or server.poll() is not None, 1800)
        assert sites[0].pid is not None
        os.kill(sites[0].pid, signal.SIGSTOP)
        server.wait(1800)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        played = [line for line in lines if line["kind"] == "round"]
        seconds = [sum(line["cost"]["seconds"].values()) for line in played]
        without = [line["round"] for line in played if 0 not in line["participants"] or line["failures"]]
        usual, met = median(seconds[1:stopped]), max(seconds[stopped:])
        then = seconds[seconds.index(met) + 1 :]  # the last of these has an evaluation of its own
        print("seconds of each round:", *(round_to(each) for each in seconds))
        print(f"rounds without the site, or in which it failed: {without}")
        found = {"usual_s": usual, "met_s": met, "then_s": median(then), "last_s": then[-1]}
        print(json.dumps({name: round_to(value) for name, value in found.items()} | {"sites": int(count)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
