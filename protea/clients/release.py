"""What a client lets go of what it made: all of it in a simulation; at a site, what its own policy allows."""

from __future__ import annotations

from collections.abc import Sequence

from protea.core.message import Named
from protea.evaluation.examination import Examination
from protea.federation.jobs import Reply
from protea.filters.base import Passage


class Release:
    """The client's own last word on what leaves it, beside what method and filters do.  By default all of it leaves.

    An upload passes ``withhold``, the filters, ``upload`` and ``reply``; an evaluation ``evaluation`` and ``reply``.
    What may not leave raises, and the client is as it was before the job.
    """

    by_counts: bool = False  # classes are kept back by their exact numbers of samples

    @property
    def held_names(self) -> Sequence[str]:
        """The names of the classes that are kept back."""
        return ()

    def withhold(self, up: Named, at: Passage) -> Named:
        """Take out of an upload what is kept back, before the filters."""
        return up

    def upload(self, up: Named, at: Passage) -> Named:
        """Give an upload as it leaves, after the filters."""
        return up

    def evaluation(self, found: Examination) -> Examination:
        """Give what is told of an evaluation."""
        return found

    def reply(self, reply: Reply) -> Reply:
        """Give a reply with what is said beside its tensors: the number of samples, the loss."""
        return reply
