"""A site's directory.

site.py      two functions: model() and data()
site.toml    settings of this site
site.key     its own key, if it asked for an invitation by one; it never leaves
policy.toml  what may leave it, and what it may be asked
seed         a secret number, from which it draws its weights, batches and splits
bundle/      what the coordinator gave it
state/       its model and memory after the last rounds, scaling and last broadcast; they never leave
             with beside = true also a model trained alone, and what the federation gives beside it
views/       its samples after its model's tokenizer and frozen layers, cached; they never leave
progress.json  the last round and this site's own accuracy, for its screen
audit.jsonl  one line for every message that left the site
flower/      log of the client process, and how its connection stands
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from protea.clients.builder import Builder
from protea.clients.durable import newest_state
from protea.clients.plan import WorkerPlan
from protea.clients.privacy import noise_filter
from protea.clients.worker import Worker
from protea.config.families import Member
from protea.config.sections import Split
from protea.config.toml import settings_from_table, to_table
from protea.core.client import Client
from protea.core.devices import choose_device
from protea.core.errors import ConfigError, DataError, ProteaError
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.split_model import SplitModel
from protea.core.training import Training
from protea.data import Dataset, Share
from protea.data.federate import split_share
from protea.data.gaps import fill_in
from protea.data.scaling import Scaling
from protea.data.views import refuse_unread, view_samples
from protea.federation.privacy import TOGETHER, UNSTATED
from protea.models.maker import ModelMaker
from protea.network.public_data import public_samples
from protea.network.site.code import call_with, load_code
from protea.network.site.data import as_dataset, with_classes
from protea.network.site.peers import refuse_unknowable, voucher_of
from protea.network.site.policy import NAME, PolicyFile, Report, read_policy
from protea.network.site.release import PolicyRelease
from protea.network.site.scaling import filling_of, scaling_of
from protea.network.site.seed import secret_seed, seed_of_task
from protea.network.site.settings import Settings, read_settings
from protea.network.task import Task
from protea.network.trust.bundles import Bundle


class Site:
    """A site: its directory with the coordinator's bundle, its model, data and settings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._policy_read: tuple[int, int] | None = None  # the file's time and size when it was read
        for needed in ("site.py", "site.toml"):
            if not (path / needed).is_file():
                raise ConfigError(f"{path} is not a site's directory: it has no {needed}.  Make one: protea site init")
        self.bundle = Bundle(path / "bundle")
        if not (self.bundle.folder / "bundle.json").is_file():
            raise ConfigError(
                f"{path} has no bundle yet.  Give the one that the coordinator sent: protea site check BUNDLE"
            )

    @cached_property
    def task(self) -> Task:
        """The task of the federation, as the bundle has it."""
        return self.bundle.task

    @cached_property
    def settings(self) -> Settings:
        """The content of ``site.toml``."""
        return read_settings(self.path / "site.toml")

    @cached_property
    def policy(self) -> PolicyFile:
        """The content of ``policy.toml``; the safe defaults where there is none."""
        self._policy_read = changed(self.path / NAME)
        return read_policy(self.path / NAME)

    def follow_policy(self) -> None:
        """Read ``policy.toml`` anew if it was changed; what leaves from now on is as it says.

        Whether records are prepared alone is read when the site begins, since that stands for what noise was added to.
        """
        now = changed(self.path / NAME)
        if now == self._policy_read:
            return
        policy = read_policy(self.path / NAME)
        refuse_unknowable(policy, self.bundle.key)
        self.policy = self.release.file = policy
        self.release.report = self.report
        self._policy_read = now

    @cached_property
    def seed(self) -> int | bytes:
        """The seed of all that is drawn here: from the site's secret, and different for every task."""
        path = self.path / "seed"
        if self.settings.seed == "task":
            return self.task.seed
        if newest_state(self.state, self.id) is not None and not path.exists():
            raise ConfigError(
                f"{self.state} was trained, and {path} is missing, from which its samples were split.  Put that file "
                f"back; or begin anew: move {self.state} away.  A state that was drawn from the task's own seed goes "
                f'on with seed = "task" in site.toml.'
            )
        return seed_of_task(secret_seed(path), self.task.mark())

    @cached_property
    def class_counts(self) -> dict[str, int]:
        """The number of training samples of each class, by its name."""
        labels = self.raw.y[self.share.train]
        return dict(zip(self.task.classes, labels.bincount(minlength=len(self.task.classes)).tolist(), strict=True))

    @property
    def report(self) -> Report:
        """What evaluation replies contain: what ``policy.toml`` allows, unless ``site.toml`` says nothing at all."""
        return self.policy.policy.report if self.settings.report else "none"

    @cached_property
    def training(self) -> Training:
        """The training settings of the task, with the overrides of ``site.toml``."""
        table = {**to_table(self.task.training), **self.settings.training}
        training: Training = settings_from_table(Training, table, str(self.path / "site.toml"), "training")
        return training

    @cached_property
    def code(self) -> Any:
        """The module in ``site.py``."""
        return load_code(self.path / "site.py")

    def source(self) -> Any:
        """Call ``data()`` of ``site.py``, which gives arrays, a torch data set, or a source such as ``Csv(...)``."""
        return self._call("data")

    @cached_property
    def unguarded(self) -> str:
        """Why records of this site are not known to be prepared one by one; an empty string where they are."""
        raw = self.raw
        if self.settings.standardise or self._mixes or raw.mixed or raw.gaps:  # gaps are filled by medians of all
            return TOGETHER
        return "" if self.policy.policy.prepared_alone else UNSTATED

    @cached_property
    def raw(self) -> Dataset:
        """The samples that ``data()`` gives, labelled by the classes of the task."""
        given = self.source()
        self._mixes = bool(getattr(given, "mixes_records", False))
        try:
            return with_classes(as_dataset(given, self.task.classes), self.task.classes)
        except ProteaError as error:
            raise DataError(f"{self.path / 'site.py'}: data(): {error}") from error
        except Exception as error:  # a data set of the site's own making is read here
            raise DataError(f"{self.path / 'site.py'}: data(): {type(error).__name__}: {error}") from error

    @cached_property
    def filling(self) -> torch.Tensor | None:
        """What stands for missing numbers: as kept with the state, or the medians of the training samples."""
        return filling_of(self.raw, self.share.train, self.state, self._trained)

    @cached_property
    def filled(self) -> Dataset:
        """The samples of ``data()`` with nothing missing."""
        raw, fill = self.raw, self.filling
        if fill is None or not raw.gaps or not isinstance(raw.x, torch.Tensor):
            return raw
        return replace(raw, x=fill_in(raw.x, fill), gaps=False)

    @cached_property
    def scaling(self) -> Scaling | None:
        """How samples are standardised: by the numbers kept with the state, or by the training samples."""
        return scaling_of(self.filled, self.share.train, self.settings.standardise, self.state, self._trained)

    @cached_property
    def dataset(self) -> Dataset:
        """The samples as the model gets them: those of ``data()``, standardised if ``site.toml`` says so."""
        raw, scaling = self.filled, self.scaling
        if scaling is None:
            return raw
        assert isinstance(raw.x, torch.Tensor)
        return replace(raw, x=scaling(raw.x))

    @cached_property
    def share(self) -> Share:
        """The rows of the data set for training, validation and test."""
        dataset, settings = self.raw, self.settings.split
        rows = torch.arange(len(dataset) - dataset.tests)
        if dataset.tests:
            settings = Split(0.0, settings.validation, settings.stratify, settings.by_key)
        found = split_share(rows, dataset, settings, Streams(self.seed).at("data", "client", self.id).numpy("split"))
        if dataset.tests:
            found = Share(found.train, found.validation, torch.arange(len(dataset) - dataset.tests, len(dataset)))
        return found

    @property
    def state(self) -> Path:
        """The folder of the site's model and memory, which never leave."""
        return self.path / "state"

    @property
    def ended(self) -> Path:
        """The file that marks the federation as ended by the coordinator."""
        return self.path / "ended"

    @property
    def _trained(self) -> bool:
        """Whether there is a state after a round of training."""
        newest = newest_state(self.state, self.id)
        return newest is not None and newest.name != "000000"

    def trained(self) -> SplitModel:
        """Load the model as it is after the last round that this site trained in, in evaluation mode."""
        if not self._trained:
            raise ConfigError(f"{self.path} has not trained yet.")
        return self.restored().client(self.id).model.eval()

    def restored(self) -> Worker:
        """Make a worker whose client is as it was after the last round that this site trained in."""
        worker = Worker(self.plan())
        if (newest := newest_state(self.state, self.id)) is not None:
            worker.load(newest)
        return worker

    @property
    def id(self) -> int:
        """The site's number, which is that of its client."""
        return self.bundle.invitation.id

    @property
    def name(self) -> str:
        return self.bundle.invitation.site

    @cached_property
    def model_name(self) -> str:
        """The name of the model's architecture, which the coordinator shows."""
        with torch.random.fork_rng(devices=[]):  # this model is dropped: building it must not change later draws
            return self.model().name

    @cached_property
    def maker(self) -> ModelMaker:
        """The maker that fits models to the task and to the shape of this site's samples."""
        task = self.task
        return ModelMaker(
            task.models, self.dataset.shape, len(task.classes), self.device, task.method.needs.common_view
        )

    @cached_property
    def device(self) -> str:
        """The torch device to train on."""
        return choose_device(self.settings.device)

    def model(self) -> SplitModel:
        """Call ``model()`` of ``site.py``, and fit the model to the dimension and classes of the task."""
        given = self._call("model")
        if isinstance(given, str):
            return self.maker(given)
        if not isinstance(given, nn.Module):
            raise ConfigError(
                f"{self.path / 'site.py'}: model() gives a {type(given).__name__}; expected is an nn.Module, or the "
                f"name of an architecture (protea list architectures)."
            )
        return self.maker.split(Member(f"site.py:{type(given).__name__}"), given).to(self.device)

    def public(self) -> Samples | None:
        """Load the public samples of the federation; None if it has none."""
        path = self.bundle.public
        return None if path is None else public_samples(path, self.task, self.device)

    def client(self, id: int, streams: Streams) -> Client:
        """Build this site's client; raise if ``id`` is another's."""
        if id != self.id:
            raise ProteaError(f"this site is client {self.id}; a job for client {id} came.")
        dataset, parts = self.dataset, self.share
        with streams.default("model"):
            model = self.model()
        train, validation, test = (
            view_samples(dataset, rows, model.view, device=self.device, cache=self.path / "views")
            for rows in (parts.train, parts.validation, parts.test)
        )
        public = self.public()
        if public is not None:
            refuse_unread(public.dataset, model.view)  # a federation's public samples are numbers
        return Client(
            id=id,
            model=model,
            train=self.training.arrange(train, streams),
            validation=validation,
            test=test,
            public=public,
            classes=len(self.task.classes),
            dim=self.task.models.dim,
            rng=streams,
            training=self.training,
            make=self.maker,
            device=torch.device(self.device),
            rounds=self.task.rounds,
        )

    @cached_property
    def release(self) -> PolicyRelease:
        """What lets go of this site's answers what its policy allows."""
        return PolicyRelease(self.policy, lambda: self.class_counts, self.report)

    def plan(self) -> WorkerPlan:
        """Collect what a worker needs to build this site's client and run its jobs."""
        task = self.task
        return WorkerPlan(
            task.played,
            SiteBuilder(self),
            self.seed,
            self.settings.threads,
            task.evaluation.local_prototypes,
            rules=task.evaluation.rules,
            metrics=task.evaluation.metrics,
            answer=task.evaluation.answer,
            filters=task.filters,
            release=self.release,
            system_randomness=True,
            voucher=voucher_of(self),
            unguarded=self.unguarded if self._noisy else "",
            careful=True,
        )

    @property
    def _noisy(self) -> bool:
        """Whether anything adds noise here, of which something could be claimed."""
        return noise_filter(self.task.filters) is not None or self.training.dp is not None

    def _call(self, name: str) -> Any:
        """Call a function of ``site.py`` with those of ``classes`` and ``dim`` that it has parameters for."""
        function: Callable[..., Any] = getattr(self.code, name)
        given = {"classes": self.task.classes, "dim": self.task.models.dim}
        return call_with(function, given, f"{self.path / 'site.py'}: {name}()")


def changed(path: Path) -> tuple[int, int] | None:
    """Return by what a file is seen to be another one: its time and its size; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@dataclass(frozen=True)
class SiteBuilder(Builder):
    """The builder of the one client that lives at a site."""

    site: Site

    def __call__(self, id: int, streams: Streams) -> Client:
        return self.site.client(id, streams)

    @property
    def device(self) -> str:
        return self.site.device

    def size(self, client: int) -> int:
        return len(self.site.share.train)
