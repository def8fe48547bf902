"""The method of an experiment as it is played, maybe wrapped, and the evaluation that goes with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from protea.config.experiment import Experiment
from protea.config.sections import Evaluation
from protea.core.method import Method
from protea.federation.alone import Alone
from protea.federation.attack import Attacked, Triggered
from protea.federation.protect import Protect, Unfederated, Unprotected


def played_method(method: Method[Any, Any], *, alone: bool = False, protect: bool = False) -> Method[Any, Any]:
    """Return the method with each client alone, or protected, or both."""
    found = Alone(method) if alone else method
    return Protect(found) if protect else found


def attackers(experiment: Experiment) -> tuple[int, ...]:
    """Return the clients that ``[attack]`` names, ascending; with ``kind = "none"`` they do nothing bad."""
    return experiment.attack.bad(experiment.clients, experiment.seed)


def method_of(experiment: Experiment) -> Method[Any, Any]:
    """Return the method of an experiment as it is played: attacked, each client alone, or protected, where so set."""
    attack, method = experiment.attack, experiment.method
    if attack.kind != "none":
        method = Attacked(method, attack.kind, attackers(experiment), attack.factor, attack.target)
    return played_method(method, alone=experiment.alone, protect=experiment.protect)


def evaluation_of(experiment: Experiment) -> Evaluation:
    """Return the evaluation of an experiment.

    Where clients are protected it has two rules more: what they would answer without that, and without a federation.
    Beside a backdoor it has one more: what they answer to samples with the trigger.
    """
    settings, method = experiment.evaluation, method_of(experiment)
    rules: tuple[Any, ...] = settings.rules
    if isinstance(method, Protect):
        rules = (*rules, Unprotected(method.inner), Unfederated())
    if experiment.attack.kind == "backdoor":
        rules = (*rules, Triggered(method))
    return replace(settings, rules=rules) if rules != settings.rules else settings
