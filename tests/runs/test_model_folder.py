"""A model to take away: its program answers as ``run.predict`` does, and holds nothing that could be code."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from digits import load_digits
from night import by_night
from torch import nn
from wanted import extra

import protea
from protea import Data, Engine, Evaluation, Experiment, Models
from protea.core.errors import ConfigError
from protea.core.method import Method
from protea.data.sources.digits import Digits
from protea.methods.fedloo import FedLOO
from protea.methods.fednh import FedNH
from protea.methods.fedpagr import FedPAGR
from protea.methods.fedpcl import FedPCL
from protea.methods.fedproto import FedProto
from protea.methods.lg_fedavg import LGFedAvg
from protea.methods.local import Local
from protea.runs.model_folder.contents import Answering, Origin, contents_of
from protea.runs.model_folder.onnx_file import to_onnx
from protea.runs.model_folder.preparation import Preparation
from protea.runs.model_folder.program import TensorProgram, TraceError, largest_difference, traced
from protea.runs.trained import TrainedClient

IMAGES = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)[:, None]
NAMES = tuple("0123456789")
PIXELS = Preparation.of(Digits(), (1, 8, 8), torch.uint8)
SMALL = Experiment(
    rounds=2,
    clients=2,
    data=Data(samples=200),
    models=Models(family="tiny_mlp", dim=16),
    engine=Engine("inline"),
    evaluation=Evaluation(shared="never", snapshots=0),
)
RULES: dict[str, tuple[Method[Any, Any], str]] = {
    "classifier": (Local(), "here the same as head"),
    "nearest global, euclidean": (FedProto(), "here the same as global_prototypes"),
    "nearest own, euclidean": (FedProto(answer="local"), "the method's own"),
    "classifier of FedProto": (FedProto(answer="head"), "here the same as head"),
    "nearest global, cosine": (FedPCL(answer="global"), "the method's own"),
    "nearest own, cosine": (FedPCL(), "here the same as head"),
    "cosine over a temperature": (FedPAGR(), "the method's own"),
    "discriminants": (FedLOO(), "the method's own"),
    "a head that the server sent": (LGFedAvg(), "the method's own"),
    "a body that the server sent": (FedNH(answer="global"), "the method's own"),
}


def trained_by(method: Method[Any, Any], **settings: Any) -> TrainedClient:
    run = protea.Run(replace(SMALL, method=method, **settings))
    run.finish()
    return run.client(1)


def origin(method: str = "m") -> Origin:
    return Origin("Client 1 of x", method, NAMES, PIXELS, instead="Use it by Protea.")


DAY = ["nearest global, euclidean", "classifier of FedProto", "discriminants"]
NIGHT = [rule for rule in RULES if rule not in DAY]


@pytest.mark.parametrize("rule", [*DAY, *by_night(*NIGHT)])
def test_a_program_answers_as_the_run_does(rule: str):
    """From bytes to probabilities by the method's own rule, after the way through JSON."""
    method, words = RULES[rule]
    trained = trained_by(method)
    found = contents_of(trained, origin())
    assert found.note == "" and words in found.rule_words
    again = TensorProgram.from_table(json.loads(json.dumps(found.program.to_table())), found.program.values)
    x = torch.from_numpy(IMAGES[300:400])
    torch.testing.assert_close(again(x), trained.predict(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again(x[:1]), trained.predict(x[:1]), atol=1e-5, rtol=1e-5)
    right, of = found.accuracy["method"]
    assert int(trained.confusion().trace()) == right and of == sum(found.samples["test"])


@pytest.mark.parametrize("rule", [DAY[0], *by_night(*DAY[1:], *NIGHT)])
def test_an_onnx_file_answers_as_the_run_does(rule: str):
    extra("onnx")
    import onnxruntime

    method, _ = RULES[rule]
    trained = trained_by(method)
    found = contents_of(trained, origin(), onnx=True)
    assert found.onnx is not None and found.onnx_difference < 1e-5
    session = onnxruntime.InferenceSession(found.onnx, providers=["CPUExecutionProvider"])
    for rows in (slice(300, 301), slice(300, 400)):
        (answer,) = session.run(["probabilities"], {"samples": IMAGES[rows]})
        torch.testing.assert_close(torch.from_numpy(answer), trained.predict(torch.from_numpy(IMAGES[rows])))


def test_an_onnx_file_that_cannot_be_made_is_an_error_before_anything_is_written(monkeypatch: pytest.MonkeyPatch):
    trained = trained_by(Local())
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"--onnx needs the package onnx(script)?\.  Install it: .*\[onnx\]"):
        contents_of(trained, origin(), onnx=True)
    monkeypatch.undo()
    extra("onnx")
    found = contents_of(trained, origin())

    class Odd(TensorProgram):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x).flip(1)

    odd = Odd(**vars(found.program))
    with pytest.raises(ConfigError, match=r"as ONNX gives probabilities that differ by (.|\n)*Do something else"):
        to_onnx(found.exported, odd, PIXELS.drawn(64, torch.zeros(1)), "Do something else.")


def test_a_rule_that_cannot_be_exported_is_never_replaced_in_silence():
    """The blend is weighed outside torch: unasked the classifier answers, with a note; asked for it is an error."""
    trained = trained_by(FedProto(), evaluation=replace(SMALL.evaluation, answer="blend"))
    found = contents_of(trained, origin())
    assert found.rule == "head" and "blend, cannot be exported" in found.note and "classifier answers" in found.note
    x = torch.from_numpy(IMAGES[:20])
    torch.testing.assert_close(found.program(x), trained.predict(x, "head"), atol=1e-5, rtol=1e-5)
    with pytest.raises(ConfigError, match=r"The rule blend cannot be exported: (.|\n)*Use it by Protea"):
        contents_of(trained, origin(), "blend")
    with pytest.raises(ConfigError, match=r"no rule 'haed'.  Did you mean head"):
        contents_of(trained, origin(), "haed")


def test_a_model_that_looks_at_its_numbers_is_refused_with_the_reason():
    class Moody(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(TraceError, match=r"torch.export cannot follow it"):
        traced(Moody(), torch.randn(3, 4))


def test_a_program_that_differs_is_noticed():
    model = nn.Linear(4, 3)
    floats = Preparation((4,), torch.float32)
    module = Answering(floats, model, model)
    program = TensorProgram.of(traced(module, torch.randn(3, 4)))
    x = torch.randn(30, 4)
    assert largest_difference(program, module, x) <= 1e-6
    with torch.no_grad():
        model.bias.add_(torch.tensor([1.0, 0.0, 0.0]))
    assert largest_difference(program, module, x) > 1e-2


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ({"op": "aten.from_file.default", "args": ["/etc/passwd"]}, "not an operation that Protea runs"),
        ({"op": "aten.relu_.default", "args": [{"of": "x"}]}, "not an operation that Protea runs"),
        ({"op": "python.__import__", "args": ["os"]}, "not an operation that Protea runs"),
        ({"op": "os.system", "args": ["true"]}, "not an operation that Protea runs"),
        ({"op": "aten.relu.default", "args": [{"of": "z"}]}, "needs z, which nothing before it gives"),
    ],
)
def test_a_program_runs_nothing_but_operations_on_tensors(step: dict[str, Any], why: str):
    table = {"input": "x", "tensors": {}, "steps": [{"name": "y", "kwargs": {}, **step}], "output": "y"}
    with pytest.raises(ConfigError, match=why):
        TensorProgram.from_table(table, {})


def test_a_program_whose_tensors_are_gone_is_refused():
    table = {"input": "x", "tensors": {"w": "model.w"}, "steps": [], "output": "x"}
    with pytest.raises(ConfigError, match=r"needs a tensor 'model.w'"):
        TensorProgram.from_table(table, {})
    with pytest.raises(ConfigError, match="is not one"):
        TensorProgram.from_table({"input": "x"}, {})
