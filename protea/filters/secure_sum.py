"""The server learns the sum of all uploads, and no single one: docs/secure-sums.md."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from protea.config import registry
from protea.core.client import Client
from protea.core.errors import ConfigError
from protea.core.message import Named
from protea.core.method import Method, SummedBy
from protea.filters.base import Filter
from protea.filters.secure.fixed_point import FixedPoint
from protea.filters.secure.state import SumState
from protea.filters.secure.sums import SummedUploads, from_sums, to_sums

if TYPE_CHECKING:
    from protea.filters.secure.client_side import SummingClient
    from protea.filters.secure.server_side import Attempt
    from protea.filters.secure.vouching import Voucher

__all__ = ["SecureSum", "SumState", "SumStep", "secure_sum_of"]  # the state, so that a memory that has one can be read

SumStep = Literal["keys", "shares", "masked", "unmask"]


@dataclass(frozen=True)
class SecureSum(Filter):
    """Adds uploads up under masks that cancel in the sum, for methods that need no more than sums.

    It is the last filter: what it sends can be neither read nor changed.  ``leave`` and ``arrive`` do nothing, as a
    masked upload means nothing without the others.
    """

    least: Annotated[int, Field(ge=3)] = 3  # clients that must be in every sum
    threshold: Annotated[float, Field(ge=0.5, lt=1)] = 2 / 3  # more than this share of the clients must be, too
    bits: Literal[32, 64] = 64  # of each number that is sent
    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0**-24  # numbers are rounded to multiples of it

    def need(self, clients: int) -> int:
        """Return how many of so many clients must be in the sum, and must help to unmask it.

        >>> [SecureSum().need(clients) for clients in (3, 4, 5, 10)]
        [3, 3, 4, 7]
        """
        return max(self.least, math.floor(self.threshold * clients) + 1)

    def check(self, method: Method[Any, Any], name: str, filters: Sequence[Filter], participants: int) -> None:
        if method.needs.sums is None:
            raise ConfigError(
                f"{name} cannot run with the filter secure_sum: it uses single uploads, and secure_sum shows the "
                f"server their sum only.  Remove the filter, or choose a method that needs no more than sums: "
                f"{', '.join(summing_methods())}."
            )
        names = registry.plugin_names("filters", filters)
        if filters[-1] is not self:
            raise ConfigError(
                f"filters: secure_sum must be the last one: {names[-1]} follows it, and cannot read what is masked."
            )
        for other, each in zip(names, filters[:-1], strict=False):
            if not each.summable:
                raise ConfigError(
                    f"filters: {other} cannot work with secure_sum: at the server it needs single uploads, and "
                    f"secure_sum shows their sum only.  Remove one of the two."
                )
        if participants < self.least:
            raise ConfigError(
                f"filters: secure_sum needs {self.least} clients in every round (its setting least), and "
                f"{participants} would take part.  Raise clients or fraction, in a task quorum: a sum over fewer says "
                f"too much about each."
            )

    def client(self, client: Client, system_randomness: bool, voucher: Voucher) -> SummingClient:
        """Return a client's side of the sum of the round that it is in.

        Its secrets come from the operating system, or in simulations, which must repeat themselves, from its streams.
        """
        from protea.filters.secure.client_side import SummingClient  # cryptography takes a while to import

        def draw(purpose: str) -> bytes:
            return os.urandom(32) if system_randomness else client.rng.at("secure_sum").key(purpose)

        own = (client.id, client.round, client.memory, draw)
        return SummingClient(*own, self._point(), self.need, self.least, voucher)

    def sums_of(self, kind: type[Any], up: Named, by: SummedBy | None, samples: int, loss: float) -> Named:
        """Return what is added up of an upload."""
        assert by is not None  # it was checked before the first round
        return to_sums(kind, up, by, samples, loss)

    def attempt(self, round: int, keys: Mapping[int, Tensor]) -> Attempt:
        """Return the server's side of an attempt at the sum of a round; ``keys`` are the clients' public ones."""
        from protea.filters.secure.server_side import Attempt

        return Attempt(round, keys, self._point(), self.need)

    def uploads_of(self, kind: type[Any], total: Named, by: SummedBy | None, clients: int) -> SummedUploads:
        """Return what a sum over so many clients says."""
        assert by is not None
        return from_sums(kind, total, by, clients)

    def _point(self) -> FixedPoint:
        return FixedPoint(self.step, self.bits)


def secure_sum_of(filters: Sequence[Filter]) -> SecureSum | None:
    """Return the filter secure_sum, if it is among these."""
    return next((each for each in filters if isinstance(each, SecureSum)), None)


def without_secure_sum(filters: Sequence[Filter]) -> tuple[Filter, ...]:
    """Return the filters by which a single upload is what a secure sum would hide."""
    return tuple(each for each in filters if not isinstance(each, SecureSum))


def summing_methods() -> list[str]:
    """Return the registered methods that need no more than sums, with their default settings."""
    return [name for name in registry.table("methods") if registry.find("methods", name)().needs.sums is not None]
