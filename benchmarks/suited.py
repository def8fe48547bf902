"""An experiment as each method needs it: with public data, a server's model, one architecture for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from protea import Experiment, Method
from protea.config.families import members


def suited(base: Experiment, method: Method[Any, Any], architecture: str = "") -> Experiment:
    """``architecture`` is for methods that need one for all clients; the family's first if not given."""
    if method.needs.text_encoder is not None:
        method = replace(cast(Any, method), encoder="words")  # which needs no extra
    experiment = replace(base, method=method)
    first = members(base.models)[0].architecture
    if method.needs.public_data and not base.data.public:
        experiment = replace(experiment, data=replace(base.data, public=200))
    if method.needs.server_model and not base.models.server:
        experiment = replace(experiment, models=replace(base.models, server=first))
    if method.needs.same_architecture:
        experiment = replace(experiment, models=replace(experiment.models, family=architecture or first, members=()))
    return experiment
