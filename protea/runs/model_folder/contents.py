"""What a trained client can give away: its model with a rule as a program, and what is known of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from protea.config.words import RULES
from protea.core.errors import ConfigError
from protea.core.message import Named
from protea.core.prototypes import Prototypes
from protea.core.split_model import PairedView, SplitModel
from protea.evaluation.counts import probabilities
from protea.models.architectures import count_parameters
from protea.runs.model_folder.onnx_file import refuse_without_onnx, to_onnx
from protea.runs.model_folder.preparation import Preparation, Prepare
from protea.runs.model_folder.program import CLOSE, TensorProgram, TraceError, largest_difference, traced
from protea.runs.model_folder.reading import Read, Reading
from protea.runs.trained import TrainedClient

TRIED = 64  # random inputs on which a program is compared with what it was made of
LOOKED = 64  # own samples on which rules are compared


@dataclass(frozen=True)
class Origin:
    """Where a model comes from."""

    who: str  # "Client 3 of runs/x", "Site north"
    method: str
    classes: tuple[str, ...]
    preparation: Preparation
    settings: Mapping[str, object] = field(default_factory=dict)  # of the federation, for the card
    privacy: Sequence[str] = ()  # sentences: filters, noise, what was guaranteed
    instead: str = ""  # what to type where a model cannot be exported


@dataclass(frozen=True)
class Contents:
    """All that a folder holds, before it is written."""

    origin: Origin
    round: int
    architecture: str
    parameters: int
    dim: int
    rule: str
    rule_words: str
    note: str  # why the rule is not the one that was asked for; empty where it is
    exported: ExportedProgram
    program: TensorProgram
    difference: float  # largest, of a probability, between the program and the original
    weights: Named  # the network's, by their own names
    prototypes: Named
    samples: dict[str, list[int]]  # of each part, by class
    accuracy: dict[str, tuple[int, int]]  # by rule: right answers, of so many of the client's test samples
    onnx: bytes | None = None  # the program once more, as an ONNX file, if that was asked for
    onnx_difference: float = 0.0  # largest, of a probability, between that and the program


class Answering(nn.Module):
    """A preparation, a model and a rule: from the numbers of a file to class probabilities."""

    def __init__(self, preparation: Preparation, model: nn.Module, answer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        view = model.view if isinstance(model, SplitModel) else None
        self.prepare: nn.Module = Prepare(preparation) if view is None else Read(view)
        self.model, self._answer = model, answer

    def forward(self, x: Tensor) -> Tensor:
        return probabilities(self._answer(self.prepare(x))).float()


def contents_of(
    trained: TrainedClient, origin: Origin, rule: str | None = None, note: str = "", *, onnx: bool = False
) -> Contents:
    """Make a program of a client's model and rule, and gather what is known of them.

    Without ``rule`` it is the method's own one, or the classifier with a note where a program cannot hold that.
    ``note`` says what else is not as in the federation.  With ``onnx`` the program is also made an ONNX file.
    :class:`ConfigError` where no program can be made at all, or not of the rule that was asked for.
    """
    client = trained.client
    if onnx:
        refuse_without_onnx()
    if client.device.type != "cpu":
        raise ConfigError(f"The model of {origin.who} is on {client.device}; a program is made on the CPU.")
    if trained.model.view is not None:
        try:
            origin = replace(origin, preparation=origin.preparation.of_texts(Reading.of(trained.model.view)))
        except ConfigError as error:
            raise ConfigError(f"{trained.model.name} cannot be exported: {error}\n  {origin.instead}") from error
    asked = rule or "method"
    try:
        exported, program, difference = program_of(trained, origin, asked)
    except TraceError as error:
        if rule is not None or asked == "head":
            raise ConfigError(f"The rule {asked} cannot be exported: {error}\n  {origin.instead}") from error
        own = trained.evaluation.answer
        name = f"the method's own ({origin.method})" if own == "method" else own
        note = f"The rule that answers in the federation, {name}, cannot be exported: {error}  The classifier answers."
        asked = "head"
        try:
            exported, program, difference = program_of(trained, origin, asked)
        except TraceError as worse:
            raise ConfigError(f"{trained.model.name} cannot be exported: {worse}\n  {origin.instead}") from worse
    written = None
    if onnx:
        x = origin.preparation.drawn(TRIED, trained.client.train.dataset.x)
        written = to_onnx(exported, program, x, f"Leave out --onnx: program.pt2 is the same model.  {origin.instead}")
    return Contents(
        origin,
        client.round,
        trained.model.name,
        sum(count_parameters(trained.model).values()),
        client.dim,
        asked,
        words_of(trained, asked),
        note,
        exported,
        program,
        difference,
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in trained.model.state_dict().items()},
        prototypes_of(trained),
        {part: data.counts(client.classes).tolist() for part, data in client.parts.items()},
        accuracy_of(trained),
        *(written or ()),
    )


def program_of(trained: TrainedClient, origin: Origin, rule: str) -> tuple[ExportedProgram, TensorProgram, float]:
    """Make a program of a model and a rule, and compare it with these on random inputs."""
    x = origin.preparation.drawn(TRIED, trained.client.train.dataset.x)
    with torch.no_grad():
        module = Answering(origin.preparation, trained.model, trained.answering(rule)).eval()
        first = module(x[:3])  # what is made at the first call is made now, not within the program
    if isinstance(trained.model.view, PairedView) and first.isnan().any():
        raise TraceError("it needs what all clients see of a text alike, which a program does not make.")
    exported = traced(module, x[:3])
    program = TensorProgram.of(exported)
    difference = max(
        largest_difference(program, module, x), largest_difference(exported.module(), module, x)
    )  # both forms in which it is written
    if not difference <= CLOSE:
        raise TraceError(f"its program gives probabilities that differ by {difference:.2g} on random inputs.")
    return exported, program, difference


def words_of(trained: TrainedClient, rule: str) -> str:
    """Say what a rule is; of the method's own also which other one gives the same answers, if one does."""
    name = trained.evaluation.answer if rule == "method" else rule
    words = RULES.get(name, "a rule of the user's own")
    if name != "method":
        return words if rule == name else f"evaluation.answer is {name}: {words}"
    ways = trained.ways(local=trained.evaluation.local_prototypes)
    rows = torch.arange(min(LOOKED, len(trained.client.train)))
    x, _ = trained.client.train.batch(rows)
    with torch.no_grad():
        own = ways["method"](x)
        same = [other for other, way in ways.items() if other != "method" and torch.equal(way(x), own)]
    return f"{words}, here the same as {same[0]}: {RULES.get(same[0], same[0])}" if same else words


def prototypes_of(trained: TrainedClient) -> Named:
    """Return the global prototypes, if the method has any, and those of the client's own training samples."""
    found: dict[str, Prototypes | None] = {"global": trained.method.prototypes(trained.down)}
    if trained.evaluation.local_prototypes:
        trained.client.set_evaluation()
        found["own"] = trained.client.prototypes()
    return {
        f"{name}.{part}": tensor.detach().cpu().contiguous().clone()
        for name, each in found.items()
        if each is not None
        for part, tensor in (("vectors", each.vectors), ("counts", each.counts))
    }


def accuracy_of(trained: TrainedClient) -> dict[str, tuple[int, int]]:
    """Count right answers on the client's test samples by every rule that it has, but for the blend."""
    if trained.client.parts.get("test") is None:
        return {}
    found = {}
    for rule in trained.ways(local=trained.evaluation.local_prototypes):
        matrix = trained.confusion("test", rule)
        found[rule] = int(matrix.trace()), int(matrix.sum())
    return found
