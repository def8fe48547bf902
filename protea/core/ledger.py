"""What a client has spent of its privacy: its history of noisy releases, kept in its memory from round to round."""

from __future__ import annotations

import torch

from protea.core.accounting import Budget, Event, composed, epsilon_of
from protea.core.errors import PrivacyError
from protea.core.memory import Memory

HISTORY = "privacy"  # its name in a client's memory: (events, 3), float64


def history_of(memory: Memory) -> list[Event]:
    """Return the events of a client so far."""
    rows = memory[HISTORY].tolist() if HISTORY in memory else []
    return [(noise, rate, int(times)) for noise, rate, times in rows]


def spend(memory: Memory, event: Event, budget: Budget, where: str) -> None:
    """Add an event to a client's history; raise :class:`PrivacyError` before it, if it would exceed the budget."""
    history = composed([*history_of(memory), event])
    if budget.epsilon is not None and (cost := epsilon_of(history, budget.delta)) > budget.epsilon:
        raise PrivacyError(
            f"{where}: the privacy budget is spent: after this round epsilon would be {cost:.3g}, and "
            f"budget.epsilon is {budget.epsilon:g} (delta {budget.delta:g}).  Nothing was sent."
        )
    memory[HISTORY] = torch.tensor(history, dtype=torch.float64).reshape(-1, 3)
