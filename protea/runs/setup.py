"""From an experiment to the parts of a run: clients, an engine, the round loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from protea.clients.factory import ClientFactory
from protea.clients.worker import Worker
from protea.config import registry
from protea.config.experiment import Experiment, method_label
from protea.config.units import in_bytes
from protea.core.devices import choose_device
from protea.core.errors import ConfigError
from protea.core.rng import Streams
from protea.data.federate import federate
from protea.data.partition.file import PartitionFile
from protea.data.views import refuse_unread
from protea.federation.jobs import JobEngine, Watch, ignore
from protea.federation.loop import Federation


def prepare(experiment: Experiment, given: PartitionFile | None = None) -> ClientFactory:
    """Load and share out the data, and try every model once: what cannot work fails here.

    ``given`` is the partition that a run had before it was interrupted.
    """
    experiment.check()
    data, place = experiment.data, choose_device(experiment.device)
    seed = experiment.seed if data.seed is None else data.seed
    federated = federate(
        data.source.load(),
        experiment.clients,
        given or data.partition,
        split=data.split,
        pool=data.pool,
        samples=data.samples,
        public=data.public,
        seed=seed,
    )
    if experiment.method.needs.public_data and not len(federated.public):
        raise ConfigError(f"{method_label(experiment.method)} needs public data, and the partition file has none.")
    if (data.augment.crop or data.augment.flip) and len(federated.dataset.shape) != 3:
        raise ConfigError(f"data.augment is for images; samples here have the shape {federated.dataset.shape}.")
    recipe = ClientFactory(
        federated,
        models=experiment.models,
        training=experiment.training,
        augment=data.augment if data.augment.crop or data.augment.flip else None,
        rounds=experiment.rounds,
        device=place,
        gives_public=experiment.method.needs.public_data,
        gives_test=experiment.evaluation.shared != "never",
    )
    channels_last = recipe.make.channels_last(experiment.training.batch)
    recipe = replace(recipe, models=replace(recipe.models, channels_last=channels_last))
    with Streams(experiment.seed).default("try"):
        for index, member in enumerate(recipe.members):
            if member not in recipe.members[:index]:
                refuse_unread(federated.dataset, recipe.make(member).view)
        if experiment.models.server is not None:
            refuse_unread(federated.dataset, recipe.make("server").view)
    return recipe


def _begin(experiment: Experiment, given: PartitionFile | None = None) -> ClientFactory:
    """:func:`prepare`, while an engine whose start takes long gets ready."""
    experiment.check()
    warm: Callable[[], None] | None = getattr(registry.find("engines", experiment.engine_name), "warm", None)
    if warm is not None:
        warm()
    return prepare(experiment, given)


def open_engine(experiment: Experiment, recipe: ClientFactory) -> JobEngine:
    settings = experiment.engine
    local = experiment.evaluation.local_prototypes
    worker = Worker(
        experiment.method,
        recipe,
        experiment.seed,
        settings.threads,
        local,
        careful=experiment.failures == "skip",
        memory=None if settings.memory is None else in_bytes(settings.memory),
    )
    engine: JobEngine = registry.find("engines", experiment.engine_name)(worker, settings)
    return engine


def federation(experiment: Experiment, recipe: ClientFactory, engine: JobEngine, watch: Watch = ignore) -> Federation:
    view = recipe.server_view(experiment.method.needs.server_model)
    return Federation(
        method=experiment.method,
        engine=engine,
        server=recipe.server(experiment.seed, view),
        clients=experiment.clients,
        rounds=experiment.rounds,
        fraction=experiment.fraction,
        evaluation=experiment.evaluation,
        failures=experiment.failures,
        min_replies=experiment.min_replies,
        faults=experiment.faults,
        limits=experiment.limits,
        threads=experiment.engine.threads,
        test=recipe.shared_test(view),
        watch=watch,
    )
