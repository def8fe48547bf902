"""What a trained client answers for new samples: as a table, in a file, and how right it is where labels are known."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protea.core.files import write_text
from protea.data.new_samples import NewSamples, SampleForm
from protea.evaluation.counts import Counts
from protea.runs.trained import TrainedClient, confusion_matrix

TOGETHER = 1024  # samples of one call; the client cuts them into batches of its own


@dataclass(frozen=True)
class Predictions:
    """Class probabilities for some samples, and their labels where these are known."""

    samples: NewSamples
    probabilities: Tensor  # float32 (samples, classes)
    names: tuple[str, ...]  # of the classes

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def answers(self) -> list[str]:
        """The likeliest class of each sample."""
        return [self.names[place] for place in self.probabilities.argmax(1).tolist()]

    @property
    def counts(self) -> Counts | None:
        """Hits and answers by class, from which accuracies follow; ``None`` without labels."""
        labels = self.samples.labels
        return None if labels is None else Counts.of(self.probabilities.log(), labels)

    def confusion(self) -> Tensor | None:
        """Count how often each class (row) was answered as each class (column); ``None`` without labels."""
        labels = self.samples.labels
        return None if labels is None else confusion_matrix(labels, self.probabilities.argmax(1), len(self.names))

    @property
    def columns(self) -> list[str]:
        """The header of the table."""
        true = [] if self.samples.labels is None else ["true"]
        return [self.samples.key, "predicted", "probability", *(f"p_{name}" for name in self.names), *true]

    def rows(self) -> Iterator[list[str]]:
        """Give the table row by row: the sample's key, its likeliest class and the probability of it, then all of them.

        The label is last, where it is known.  Probabilities have nine digits, which are all that a float32 has.
        """
        labels = self.samples.labels
        for row, answer in enumerate(self.answers):
            chances = [f"{chance:.9g}" for chance in self.probabilities[row].tolist()]
            best = chances[int(self.probabilities[row].argmax())]
            true = [] if labels is None else [self.names[int(labels[row])]]
            yield [self.samples.keys[row], answer, best, *chances, *true]

    def write(self, path: Path) -> None:
        """Write the table as .csv; the file is whole or not there."""
        text = io.StringIO(newline="")
        table = csv.writer(text, lineterminator="\n")
        table.writerow(self.columns)
        table.writerows(self.rows())
        write_text(path, text.getvalue())


def form_of(
    client: TrainedClient, names: tuple[str, ...], *, resize: bool = False, fill: Tensor | None = None
) -> SampleForm:
    """Describe what a client's samples look like; ``fill`` is what it puts for missing numbers."""
    data = client.client.train.dataset
    texts = client.model.view is not None
    return SampleForm(names, () if texts else data.shape, data.x.dtype, texts, resize, fill)


def predict_samples(
    client: TrainedClient,
    samples: NewSamples,
    names: tuple[str, ...],
    rule: str = "method",
    told: Callable[[int], object] = lambda done: None,
) -> Predictions:
    """Let a client answer new samples, part by part; ``told`` is called with how many are done."""
    parts = []
    for start in range(0, len(samples), TOGETHER):
        parts.append(client.predict(samples.part(start, TOGETHER), rule))
        told(min(start + TOGETHER, len(samples)))
    return Predictions(samples, torch.cat(parts), names)
