"""The method of an experiment as it is played, maybe wrapped, and the evaluation that goes with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from protea.config.experiment import Experiment
from protea.config.sections import Evaluation
from protea.core.method import Method
from protea.federation.alone import Alone
from protea.federation.protect import Protect, Unfederated, Unprotected


def played_method(method: Method[Any, Any], *, alone: bool = False, protect: bool = False) -> Method[Any, Any]:
    """Return the method with each client alone, or protected, or both."""
    found = Alone(method) if alone else method
    return Protect(found) if protect else found


def method_of(experiment: Experiment) -> Method[Any, Any]:
    """Return the method of an experiment as it is played: each client alone, or protected, where that is set."""
    return played_method(experiment.method, alone=experiment.alone, protect=experiment.protect)


def evaluation_of(experiment: Experiment) -> Evaluation:
    """Return the evaluation of an experiment.

    Where clients are protected it has two rules more: what they would answer without that, and without a federation.
    """
    settings, method = experiment.evaluation, method_of(experiment)
    if not isinstance(method, Protect):
        return settings
    return replace(settings, rules=(*settings.rules, Unprotected(method.inner), Unfederated()))
