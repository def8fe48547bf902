"""The accounting of noise, against closed forms, brute force, and Google's dp-accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import wanted
from scipy.stats import norm

from protea.core.accounting import Budget, Event, composed, epsilon_of, gaussian_delta, gaussian_epsilon, gaussian_mu
from protea.core.errors import ConfigError, PrivacyError
from protea.core.ledger import history_of, spend
from protea.core.memory import Memory
from protea.core.private_sgd import PrivateTraining

# Made by dp-accounting 0.6.0, whose pins clash with ours (attrs 23), in an environment of its own:
#   pip install dp-accounting==0.6.0
#   from dp_accounting import NeighboringRelation, dp_event as e
#   from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
#   accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4)
#   for noise, rate, times in history:
#       event = e.GaussianDpEvent(noise)
#       accountant.compose(event if rate == 1 else e.PoissonSampledDpEvent(rate, event), times)
#   print(accountant.get_epsilon(delta))
TABULATED: list[tuple[list[Event], float, float]] = [
    ([(1.0, 1.0, 1)], 1e-05, 4.3772),
    ([(2.0, 1.0, 10)], 1e-05, 7.5113),
    ([(5.0, 1.0, 3), (3.0, 1.0, 2)], 1e-06, 2.6798),
    ([(0.8, 1.0, 1)], 1e-05, 5.6796),
    ([(20.0, 1.0, 50)], 1e-06, 1.5436),
    ([(1.1, 0.2, 100)], 1e-05, 12.3371),
    ([(1.0, 0.01, 1000)], 1e-05, 1.8282),
    ([(2.0, 0.1, 80), (8.0, 1.0, 8)], 1e-05, 2.5491),
    ([(1.3, 0.05, 200), (4.0, 1.0, 3)], 1e-06, 3.957),
]


@pytest.mark.parametrize(("history", "delta", "epsilon"), TABULATED)
def test_epsilon_is_that_of_dp_accounting_to_one_per_cent(history: list[Event], delta: float, epsilon: float) -> None:
    if any(rate < 1 for _, rate, _ in history):
        wanted.extra("privacy")
    assert epsilon_of(history, delta) == pytest.approx(epsilon, rel=0.01)


def test_delta_is_the_integral_of_what_the_noise_does_not_hide() -> None:
    """The hockey-stick divergence of two Gaussians at distance mu, summed on a grid."""
    for mu, epsilon in ((1.0, 0.5), (2.5, 3.0), (0.3, 0.1)):
        x = np.linspace(-12, 15, 400_001)
        lost = np.clip(norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x), 0, None)
        assert gaussian_delta(mu, epsilon) == pytest.approx(np.trapezoid(lost, x), rel=1e-5)


def test_epsilon_and_mu_are_inverse_also_at_the_ends() -> None:
    for mu in (0.01, 0.2, 1.0, 7.0, 60.0):
        epsilon = gaussian_epsilon(mu, 1e-6)
        if epsilon:
            assert gaussian_mu(epsilon, 1e-6) == pytest.approx(mu, rel=1e-6)
    assert gaussian_epsilon(1e-7, 1e-5) == 0.0  # so much noise that delta alone covers it


def test_many_releases_are_one_with_the_root_of_the_sum_of_squares() -> None:
    assert epsilon_of([(2.0, 1.0, 9)], 1e-5) == epsilon_of([(2 / 3, 1.0, 1)], 1e-5)
    two = epsilon_of([(4.0, 1.0, 1), (3.0, 1.0, 1)], 1e-5)
    assert two == pytest.approx(gaussian_epsilon(math.hypot(1 / 3, 1 / 4), 1e-5), rel=1e-9)
    assert composed([(1.0, 0.5, 2), (1.0, 0.5, 3), (2.0, 1.0, 0)]) == ((1.0, 0.5, 5),)


def test_training_and_releases_cost_more_than_either() -> None:
    wanted.extra("privacy")
    training, releases = [(1.5, 0.1, 50)], [(6.0, 1.0, 5)]
    both = epsilon_of([*training, *releases], 1e-5)
    assert max(epsilon_of(training, 1e-5), epsilon_of(releases, 1e-5)) < both
    assert both < epsilon_of(training, 5e-6) + epsilon_of(releases, 5e-6)  # naive composition


def test_a_fit_costs_as_many_steps_as_it_takes() -> None:
    wanted.extra("privacy")
    assert PrivateTraining(noise=1.2).event(batch=10, records=95, epochs=3) == (1.2, 10 / 95, 30)
    assert PrivateTraining(noise=1.2).event(batch=100, records=30, epochs=2) == (1.2, 1.0, 2)


def test_what_would_cost_more_than_the_budget_is_refused_before_it_is_spent() -> None:
    memory, budget = Memory(), Budget(epsilon=2.0, delta=1e-5)
    event = (1 / gaussian_mu(2.0, 1e-5) * math.sqrt(3) * 1.0001, 1.0, 1)  # three of these fit
    for _ in range(3):
        spend(memory, event, budget, "client 0, round 1")
    with pytest.raises(PrivacyError, match=r"client 0, round 4: the privacy budget is spent: .* budget.epsilon is 2 "):
        spend(memory, event, budget, "client 0, round 4")
    assert history_of(memory) == [(event[0], 1.0, 3)]


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"delta": 0.0}, {"delta": 1.0}])
def test_budgets_that_are_none_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"budget: epsilon = .* must be above 0, and delta"):
        Budget(**wrong)
