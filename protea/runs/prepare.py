"""Getting ready for an experiment: data are loaded and split, every model is built once, and what cannot work fails."""

from __future__ import annotations

from dataclasses import replace

from protea.clients.factory import ClientFactory
from protea.clients.privacy import noise_filter, refuse_idle_budget, why_not
from protea.config.experiment import Experiment, method_label
from protea.core.devices import choose_device
from protea.core.errors import ConfigError, PluginError
from protea.core.private_sgd import refuse_shared_statistics
from protea.core.rng import Streams
from protea.core.split_model import SplitModel
from protea.data import Federated, PartitionFile, federate
from protea.data.views import refuse_unread
from protea.federation.played import method_of
from protea.federation.privacy import TOGETHER
from protea.models.prompted import prompt_encoder


def prepare(experiment: Experiment, given: PartitionFile | None = None) -> ClientFactory:
    """Load the data, split them among the clients, and build every model once: settings that cannot work fail here.

    ``given`` is the partition of the run that is resumed.
    """
    experiment.check()
    data = experiment.data
    federated = federate(
        data.source.load(),
        experiment.clients,
        given or data.partition,
        split=data.split,
        pool=data.pool,
        samples=data.samples,
        public=data.public,
        seed=experiment.seed if data.seed is None else data.seed,
    )
    if data.names is not None:
        federated = federated.called(data.names)
    if experiment.method.needs.public_data and not len(federated.public):
        raise ConfigError(f"{method_label(experiment.method)} needs public data, and the partition file has none.")
    if experiment.protect:
        refuse_nothing_held_out(federated)
    if experiment.method.needs.text_encoder is not None:
        refuse_without_encoder(experiment.method.needs.text_encoder)
    if experiment.attack.kind == "backdoor" and experiment.attack.target >= len(federated.dataset.names):
        raise ConfigError(
            f"attack.target is {experiment.attack.target}; the data have the classes 0 to "
            f"{len(federated.dataset.names) - 1}."
        )
    if (data.augment.crop or data.augment.flip) and len(federated.dataset.shape) != 3:
        raise ConfigError(f"data.augment is for images; samples here have the shape {federated.dataset.shape}.")
    factory = ClientFactory(
        federated,
        models=experiment.models.of_clients(federated.client_names()),
        training=experiment.training,
        augment=data.augment if data.augment.crop or data.augment.flip else None,
        rounds=experiment.rounds,
        device=choose_device(experiment.device),
        gives_public=experiment.method.needs.public_data,
        gives_test=experiment.evaluation.shared != "never",
        common_view=experiment.method.needs.common_view,
    )
    channels_last = factory.make.channels_last(experiment.training.batch)
    factory = replace(factory, models=replace(factory.models, channels_last=channels_last))
    with Streams(experiment.seed).default("try"):
        models = {member: factory.make(member) for member in dict.fromkeys(factory.members)}
        for model in models.values():
            refuse_unread(federated.dataset, model.view)
            if experiment.training.dp is not None:
                refuse_shared_statistics([model], model.name)
            refuse_budget(experiment, model, federated)
        if experiment.models.server is not None:
            refuse_unread(federated.dataset, factory.make("server").view)
    if factory.first_weights is not None:
        factory.first_weights.check(experiment.clients, [models[member] for member in factory.members])
    return factory


def refuse_budget(experiment: Experiment, model: SplitModel, data: Federated) -> None:
    """Raise :class:`PrivacyError` for a privacy budget with a model for which no guarantee can hold."""
    noise, private = noise_filter(experiment.filters), experiment.training.dp
    why = why_not(method_of(experiment), model, experiment.filters, private is not None)
    why = why or unguarded(experiment, data)
    refuse_idle_budget(noise, private, why, model.name)


def unguarded(experiment: Experiment, data: Federated) -> str:
    """Return why records of an experiment are not prepared one by one; an empty string where they are."""
    mixed = getattr(experiment.data.source, "mixes_records", False) or data.dataset.mixed or data.fills is not None
    return TOGETHER if mixed else ""


def refuse_without_encoder(name: str) -> None:
    """Raise if the encoder that the server reads names of classes with is not here, before any work."""
    try:
        prompt_encoder(name)
    except (ConfigError, PluginError) as error:
        raise type(error)(
            f"{error}\n  The server reads names of classes with method.encoder={name}.  Without it, "
            f"method.encoder=words needs nothing installed; it hashes words and knows no meanings."
        ) from error


def refuse_nothing_held_out(federated: Federated) -> None:
    """Raise :class:`ConfigError` if some client has no validation samples, which protect = true needs of all."""
    lacking = [client for client, share in enumerate(federated.shares) if not len(share.validation)]
    if lacking:
        few = len(federated.shares[lacking[0]].train)
        raise ConfigError(
            f"protect = true needs samples that each client holds out, and client {lacking[0]}, with {few} for "
            f"training, has none ({len(lacking)} of {len(federated.shares)} clients).  Raise data.split.validation, or "
            f"give clients more samples."
        )
