"""An observer of your own: it is told of every round, and may end the run."""

import protea
from protea.federation.record import Record


class Enough(protea.Observer):
    """Ends the run at a given accuracy."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy

    def started(self, run: protea.Run) -> None:
        print(f"{run.experiment.rounds} rounds at most")

    def round(self, record: Record) -> object:
        if record.accuracy is not None and record.accuracy > self.accuracy:
            return protea.STOP  # this round is the last; all is written as in the end
        return None


if __name__ == "__main__":
    small = {"data": protea.Data(samples=300), "models": protea.Models("tiny_mlp", dim=16)}
    run = protea.Run(protea.Experiment(rounds=20, clients=3, **small), observers=[Enough(0.2)])
    print(f"accuracy {run.finish().records[-1].accuracy:.1%}, {len(run.records)} rounds")
