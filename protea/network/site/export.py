"""Where the model of a site comes from, for its folder."""

from __future__ import annotations

from pathlib import Path

from protea.config.experiment import method_label
from protea.config.toml import to_table
from protea.core.method import Method
from protea.core.shell import quoted
from protea.network.site.predict import LACKING, has_broadcast, trained_client
from protea.runs.model_folder.contents import Contents, Origin, contents_of
from protea.runs.model_folder.of_run import to_words
from protea.runs.model_folder.preparation import Preparation


def contents_of_site(path: Path, rule: str | None = None, *, onnx: bool = False) -> Contents:
    """Make what the folder of a site's model holds: raw samples in, and the answers by which it was evaluated out."""
    site, trained = trained_client(path, device="cpu")
    task, policy, data = site.task, site.policy.policy, trained.client.train.dataset
    privacy = [f"Uploads went through the filter `{to_words(each)}`." for each in task.filters]
    if site.training.dp is not None:
        privacy.append(f"The model was trained with noise: `{to_words(site.training.dp)}`.")
    privacy.append(
        f"The site's policy: classes with fewer than {policy.min_samples_per_class} samples were not sent; counts "
        f"{policy.counts}; of evaluations: {site.report}."
    )
    origin = Origin(
        who=f"Site {site.name}",
        method=method_label(task.played),
        classes=task.classes,
        preparation=Preparation.of(site.source(), data.shape, data.x.dtype, site.scaling, site.filling),
        settings={"rounds": task.rounds, **{f"training.{k}": v for k, v in to_table(site.training).items()}},
        privacy=privacy,
        instead=f"Use it by Protea: protea site predict DATA --dir {quoted(path)}",
    )
    own = has_broadcast(trained) or type(task.method).predict is Method.predict
    note = "" if own or rule is not None else f"{LACKING}  The classifier answers."
    return contents_of(trained, origin, rule, note, onnx=onnx)
