"""A site's own trained model, to answer new samples with.

A site keeps its model and memory after its last rounds, and what it answered; of what it was asked only a checksum.  So
the last broadcast is not known here, and of the rules only those apply that need none: the classifier, prototypes of
the site's own training samples, and a blend of these.
"""

from __future__ import annotations

from pathlib import Path

from protea.clients.durable import newest_state
from protea.config.words import RULES
from protea.core.errors import ConfigError
from protea.core.method import Method
from protea.network.site.directory import Site
from protea.runs.trained import TrainedClient

OWN = ("head", "head_own", "local_prototypes", "blend")  # rules that need no broadcast


def trained_client(path: Path) -> tuple[Site, TrainedClient]:
    """Open a site, and its client as it was after the last round that it trained in."""
    site = Site(path)
    newest = newest_state(site.state, site.id)
    if newest is None or not int(newest.name):  # round 0 is how it was before it did anything
        raise ConfigError(f"{path} has not trained yet.  Take part first: protea site join")
    client = site.restored().client(site.id)
    client.begin(int(newest.name), client.rng)
    # Without the broadcast, the client answers and blends as one of a method that has nothing but the classifier.
    return site, TrainedClient(client, Method(), None, site.task.evaluation)


def usual_rule(site: Site) -> str:
    """The rule that the task lets answer, if it needs no broadcast; else the classifier."""
    answer = site.task.evaluation.answer
    return answer if answer in OWN else "head"


def note_on_rule(site: Site, rule: str) -> str:
    """Say whether the classifier is also how the method itself answers, and what is blended; nothing of other rules.

    :class:`ConfigError` for rules that need the last broadcast.
    """
    if rule not in OWN:
        why = "needs what the coordinator last sent, which a site does not keep" if rule in RULES else "does not exist"
        raise ConfigError(f"--rule {rule} {why}.  There is: {', '.join(OWN)}.")
    if rule == "blend":
        return "Blended of the classifier, prototypes of this site's training samples and its class frequencies."
    if rule != "head":
        return ""
    if type(site.task.method).predict is Method.predict:
        return "This is also the method's own rule."
    return "The method's own rule needs what the coordinator last sent, which a site does not keep."
