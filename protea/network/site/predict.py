"""A site's own trained model, to answer new samples with.

A site keeps its model and memory after its last rounds, and what the coordinator sent for the evaluation after the last
one.  With that it answers by the method's own rule, as it was evaluated.  A site that was not evaluated after its last
round has not got it, and of the rules only those apply that need none: the classifier, prototypes of the site's own
training samples, and a blend of these.  A protected site then has the method's own rule too, with the classifier as the
federated answer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protea.clients.durable import newest_state
from protea.config.words import RULES
from protea.core.errors import ConfigError
from protea.core.method import Method
from protea.data.new_samples import NewSamples
from protea.data.scaling import Scaling
from protea.federation.protect import Protect
from protea.network.site.broadcast import kept_broadcast
from protea.network.site.directory import Site
from protea.runs.trained import TrainedClient

OWN = ("head", "head_own", "local_prototypes", "blend")  # rules that need no broadcast
LACKING = (
    "The method's own rule needs what the coordinator last sent, and the site was not evaluated after its last round."
)
FAR = 10.0  # deviations of the training samples, by which the mean of new ones is suspicious
CHOICES = {
    "alone": "the model that it trained alone",
    "federated": "the classifier of the federated model",
    "both": "the mean of the model that it trained alone and the federated one",
}


def trained_client(path: Path, device: str | None = None) -> tuple[Site, TrainedClient]:
    """Open a site, and its client as it was after the last round that it trained in; on a device if one is named."""
    site = Site(path)
    if device is not None:
        site.device = device
    newest = newest_state(site.state, site.id)
    if newest is None or not int(newest.name):  # round 0 is how it was before it did anything
        raise ConfigError(f"{path} has not trained yet.  Take part first: protea site join")
    client = site.restored().client(site.id)
    client.begin(int(newest.name), client.rng)
    known, down = kept_broadcast(site.task.played, site.state, client.round, site.device)
    if known:
        return site, TrainedClient(client, site.task.played, down, site.task.evaluation)
    # Without the broadcast, the client answers and blends as one of a method that has nothing but the classifier.
    method = site.task.played if isinstance(site.task.played, Protect) else Method[Any, Any]()
    return site, TrainedClient(client, method, None, site.task.evaluation)


def has_broadcast(trained: TrainedClient) -> bool:
    """Whether the site knows what the coordinator last sent, so that all rules apply."""
    return type(trained.method) is not Method and not (isinstance(trained.method, Protect) and trained.down is None)


def usual_rule(site: Site, trained: TrainedClient) -> str:
    """The rule by which the site was evaluated, if what that needs is here; else the classifier.

    A protected site answers by what is best on its held-out samples, unless the task names another rule.
    """
    answer = site.task.evaluation.answer
    if answer == "method" and site.task.protect:
        return answer
    return answer if answer in OWN or has_broadcast(trained) else "head"


def note_on_rule(site: Site, trained: TrainedClient, rule: str) -> str:
    """Say whether the classifier is also how the method answers, what is blended, and how a protected site answers.

    :class:`ConfigError` for rules that need the last broadcast.
    """
    protect = trained.method if isinstance(trained.method, Protect) else None
    if has_broadcast(trained) and (protect is None or rule != "method"):
        return "By this rule the site was evaluated." if rule == usual_rule(site, trained) else ""
    if rule == "method" and protect is not None:
        return f"Best on this site's held-out samples is {CHOICES[protect.choice(trained.client, trained.down)]}."
    if rule not in OWN:
        why = "needs what the coordinator last sent, which is not here" if rule in RULES else "does not exist"
        raise ConfigError(f"--rule {rule} {why}.  There is: {', '.join(OWN)}.")
    if rule == "blend":
        return "Blended of the classifier, prototypes of this site's training samples and its class frequencies."
    if rule != "head":
        return ""
    if protect is not None:
        return "This site is protected: --rule method answers by what is best on its held-out samples."
    if type(site.task.method).predict is Method.predict:
        return "This is also the method's own rule."
    return LACKING


def scaled(site: Site, samples: NewSamples) -> NewSamples:
    """Return new samples standardised as the site's own were."""
    if site.scaling is None or not isinstance(samples.x, Tensor):
        return samples
    return replace(samples, x=site.scaling(samples.x))


def note_on_scale(site: Site, samples: NewSamples) -> str:
    """Warn of new samples that are far from all that the model was trained on: most often they were not scaled."""
    own = site.dataset.x
    if not isinstance(own, Tensor) or not isinstance(samples.x, Tensor) or not own.is_floating_point():
        return ""
    known = Scaling.of(own[site.share.train])
    away = known(samples.x.mean(0, keepdim=True, dtype=torch.float64)).abs().max()
    if float(away) <= FAR:
        return ""
    return (
        f"Warning: these samples are far from those that the model was trained on (one feature by {float(away):.0f} "
        f"deviations).  If data() in site.py scales its samples, let it give them as they are, and set "
        f"standardise = true in site.toml: then new ones are scaled in the same way."
    )
