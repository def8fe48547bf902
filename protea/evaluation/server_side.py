"""From what clients found to a round's scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from protea import geometry
from protea.core.errors import PayloadError
from protea.core.payload import Named, unpack
from protea.core.prototypes import Prototypes
from protea.evaluation.client_side import Examination
from protea.evaluation.rules import NAMES
from protea.evaluation.scores import Geometry, Score, Shared, finite
from protea.federation.jobs import Reply


class Judged:
    """What one evaluation found, gathered reply by reply."""

    def __init__(self, classes: int, dim: int) -> None:
        self.classes, self.dim = classes, dim
        self.examined: dict[int, Examination] = {}
        self.together: Together | None = None
        self.server: dict[str, float] = {}
        self.known: Prototypes | None = None  # the global ones

    def read(self, reply: Reply) -> Examination:
        """A client's examination; :class:`PayloadError` for what is none."""
        found = unpack(Examination, reply.up) or Examination(torch.zeros(0, dtype=torch.int64), {})
        found.check(self.classes, self.dim)
        return found

    def take(self, client: int, found: Examination) -> None:
        self.examined[client] = found

    def scores(self, part: str) -> dict[str, Score]:
        """Of every rule that all clients have; none for a part that no client has samples of."""
        found = [tallies for each in self.examined.values() if (tallies := each.of(part))]
        shared = [rule for rule in NAMES if found and all(rule in tallies for tallies in found)]
        return {rule: Score.of([tallies[rule] for tallies in found]) for rule in shared}

    def by_class(self, part: str = "test", rule: str = "method") -> dict[str, list[int]]:
        """All clients' samples, hits and answers by class."""
        tallies = [found[rule] for each in self.examined.values() if rule in (found := each.of(part))]
        if not tallies:
            return {}
        everything = sum(tallies[1:], start=tallies[0])
        return {counted: getattr(everything, counted).tolist() for counted in ("samples", "hits", "answers")}

    def geometry(self) -> Geometry | None:
        spaces = [each.space for each in self.examined.values() if each.space is not None]
        if self.known is None and not spaces:
            return None
        margins, apart = torch.full((self.classes,), torch.inf), None
        if self.known is not None:
            margins = geometry.margins(self.known.vectors, self.known.present).cpu()
            points = self.known.vectors[self.known.present]
            apart = finite(float(torch.cdist(points, points[:1]).max())) if len(points) > 1 else None
        widest = torch.stack([space.margins for space in spaces]).amax(0).cpu() if spaces else torch.zeros(0)
        both = margins.isfinite() & (widest > 0) if spaces else torch.zeros_like(margins, dtype=torch.bool)
        return Geometry(
            margins=margins.nan_to_num(0.0, 0.0, 0.0).tolist() if self.known is not None else [],
            widest=widest.tolist(),
            shrinkage=float((margins[both] / widest[both]).mean()) if both.any() else None,
            apart=apart,
            inter=_mean([float(space.inter) for space in spaces]),
            intra=_mean([float(space.intra) for space in spaces]),
        )

    def shared(self) -> dict[str, Shared]:
        return self.together.scores() if self.together else {}

    def clients(self) -> dict[int, dict[str, Any]]:
        """Each client's numbers: of every rule the hits, of the method's own those by class too."""
        found: dict[int, dict[str, Any]] = {}
        for client, each in self.examined.items():
            values: dict[str, Any] = {}
            for part in sorted(each.tallies):
                own = each.of(part)
                counts = zip(own["method"].hits.tolist(), own["method"].samples.tolist(), strict=True)
                values[f"{part}/samples"] = len(own["method"])
                values[f"{part}/classes"] = {str(c): [hits, n] for c, (hits, n) in enumerate(counts) if n}
                values |= {f"{part}/{rule}": int(tally.hits.sum()) for rule, tally in sorted(own.items())}
            if each.space is not None:
                values |= {"inter": float(each.space.inter), "intra": float(each.space.intra)}
            found[client] = values
        for client, alone in (self.together.alone if self.together else {}).items():
            found.setdefault(client, {}).update({f"shared/{rule}": value for rule, value in alone.items()})
        return found


class Together:
    """Adds up what clients say of the shared test set, one after another."""

    def __init__(self, labels: Tensor, classes: int) -> None:
        self.labels, self.classes = labels, classes
        self.chances: dict[str, Tensor] = {}  # by rule, the sum of all clients' probabilities
        self.alone: dict[int, dict[str, float]] = {}  # accuracy by client and rule

    def read(self, reply: Reply) -> Named:
        """A client's probabilities by rule; :class:`PayloadError` for what are none."""
        expected = (len(self.labels), self.classes)
        for rule, chances in reply.up.items():
            if rule not in NAMES or chances.dtype != torch.float32:
                raise PayloadError(f"answers on the shared test set by {rule!r} in {chances.dtype} were not expected.")
            if tuple(chances.shape) != expected:
                raise PayloadError(
                    f"{tuple(chances.shape)} answers on the shared test set by {rule!r}, expected are {expected} "
                    f"probabilities."
                )
            if not ((chances >= 0) & (chances <= 1 + 1e-4)).all():  # nor is nan
                raise PayloadError(f"answers on the shared test set by {rule!r} are not probabilities.")
        return reply.up

    def take(self, client: int, found: Named) -> None:
        for rule, chances in found.items():
            self.chances[rule] = self.chances[rule] + chances if rule in self.chances else chances
        self.alone[client] = {rule: self._accuracy(chances) for rule, chances in sorted(found.items())}

    def scores(self) -> dict[str, Shared]:
        """Of every rule that all clients have."""
        found = {}
        for rule in NAMES:
            alone = [of[rule] for of in self.alone.values() if rule in of]
            if alone and len(alone) == len(self.alone):
                found[rule] = Shared(self._accuracy(self.chances[rule]), sum(alone) / len(alone))
        return found

    def _accuracy(self, chances: Tensor) -> float:
        undecided = chances.amax(1) == chances.amin(1)  # all classes alike is no answer
        return int(((chances.argmax(1) == self.labels) & ~undecided).sum()) / len(self.labels)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
