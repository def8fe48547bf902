"""A site's own trained model, to answer new samples with.

A site keeps its model and memory after its last rounds, and what it answered; of what it was asked only a checksum.  So
the last broadcast is not known here, and of the rules only those apply that need none: the classifier, prototypes of
the site's own training samples, and a blend of these.  A protected site has the method's own rule too, with the
classifier as the federated answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protea.clients.durable import newest_state
from protea.config.words import RULES
from protea.core.errors import ConfigError
from protea.core.method import Method
from protea.federation.protect import Protect
from protea.network.site.directory import Site
from protea.runs.trained import TrainedClient

OWN = ("head", "head_own", "local_prototypes", "blend")  # rules that need no broadcast
CHOICES = {
    "alone": "the model that it trained alone",
    "federated": "the classifier of the federated model",
    "both": "the mean of the model that it trained alone and the federated one",
}


def trained_client(path: Path) -> tuple[Site, TrainedClient]:
    """Open a site, and its client as it was after the last round that it trained in."""
    site = Site(path)
    newest = newest_state(site.state, site.id)
    if newest is None or not int(newest.name):  # round 0 is how it was before it did anything
        raise ConfigError(f"{path} has not trained yet.  Take part first: protea site join")
    client = site.restored().client(site.id)
    client.begin(int(newest.name), client.rng)
    # Without the broadcast, the client answers and blends as one of a method that has nothing but the classifier.
    method = site.task.played if isinstance(site.task.played, Protect) else Method[Any, Any]()
    return site, TrainedClient(client, method, None, site.task.evaluation)


def usual_rule(site: Site) -> str:
    """The rule that the task lets answer, if it needs no broadcast; else the classifier.

    A protected site answers by what is best on its held-out samples, unless the task names another rule.
    """
    answer = site.task.evaluation.answer
    if answer == "method" and site.task.protect:
        return answer
    return answer if answer in OWN else "head"


def note_on_rule(site: Site, trained: TrainedClient, rule: str) -> str:
    """Say whether the classifier is also how the method answers, what is blended, and how a protected site answers.

    :class:`ConfigError` for rules that need the last broadcast.
    """
    protect = trained.method if isinstance(trained.method, Protect) else None
    if rule == "method" and protect is not None:
        return f"Best on this site's held-out samples is {CHOICES[protect.choice(trained.client, None)]}."
    if rule not in OWN:
        why = "needs what the coordinator last sent, which a site does not keep" if rule in RULES else "does not exist"
        raise ConfigError(f"--rule {rule} {why}.  There is: {', '.join(OWN)}.")
    if rule == "blend":
        return "Blended of the classifier, prototypes of this site's training samples and its class frequencies."
    if rule != "head":
        return ""
    if protect is not None:
        return "This site is protected: --rule method answers by what is best on its held-out samples."
    if type(site.task.method).predict is Method.predict:
        return "This is also the method's own rule."
    return "The method's own rule needs what the coordinator last sent, which a site does not keep."
