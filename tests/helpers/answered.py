"""Run directories in which every answer is written by hand: ``{0: "1101"}`` is client 0, wrong on its third sample."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from protea import Data, Experiment, Method
from protea.config.experiment import experiment_to_toml
from protea.config.families import Models
from protea.config.sections import Engine, Evaluation
from protea.data.sources.spiral import Spiral
from protea.evaluation.scores import PartRecord, Score
from protea.federation.record import ClientRecord, Cost, DataRecord, Record
from protea.runs.directory import RunDirectory
from protea.runs.summary import summary

Answers = Mapping[int, str]
SMALL = Experiment(
    clients=3,
    data=Data(source=Spiral(classes=3, points=30)),
    models=Models(family="tiny_mlp", dim=8),
    engine=Engine("inline"),
    evaluation=Evaluation(protocol="final"),
)


def part(bits: str, known: bool = True) -> PartRecord:
    """A test part with these answers, its samples all of class 0; ``known`` one by one."""
    hits, padded = bits.count("1"), bits.ljust(-(-len(bits) // 8) * 8, "0")
    right = int(padded, 2).to_bytes(len(padded) // 8, "big").hex() if known else None
    return PartRecord(len(bits), {0: (hits, len(bits))}, {"head": hits, "method": hits}, right=right)


def answered_round(number: int, answers: Answers, known: bool = True, pull: float | None = None) -> Record:
    """A round in which clients give these answers; one with no samples is evaluated, and has no part."""
    clients = [
        ClientRecord({"test": part(bits, known)} if bits else {}, client=client, pull=pull)
        for client, bits in answers.items()
    ]
    parts = [each.parts["test"] for each in clients if each.parts]
    accuracy = sum(each.hits["method"] for each in parts) / sum(each.samples for each in parts)
    score = Score(accuracy, accuracy, accuracy, accuracy, 0.0)
    return Record(
        round=number, participants=list(answers), loss=None, test={"method": score, "head": score}, validation={},
        classes={}, shared={}, server={}, geometry=None, values={}, bytes_up=0, bytes_down=0, total_up=0, total_down=0,
        failures={}, refused=[], absent={}, cost=Cost(), clients=clients,
    )  # fmt: skip


def answered_run(
    path: Path,
    method: Method[Any, Any],
    *rounds: Answers,
    seed: int = 1,
    alone: bool = False,
    known: bool = True,
    split: object = "same",
    protocol: str = "final",
    pull: float | None = None,
) -> Path:
    """The directory of an ended run; those with an equal ``split`` have the same samples."""
    evaluation = replace(SMALL.evaluation, protocol=protocol)
    experiment = replace(SMALL, method=method, rounds=len(rounds), seed=seed, evaluation=evaluation)
    config = tomllib.loads(experiment_to_toml(experiment)) | ({"alone": True} if alone else {})
    run = RunDirectory.create(path, tomli_w.dumps(config), {})
    (path / "partition.json").write_text(json.dumps({"samples": 9, "clients": [split], "public": [], "test": []}))
    records = [answered_round(number, answers, known, pull) for number, answers in enumerate(rounds, start=1)]
    run.append([DataRecord(["a"]).line(), *(line for record in records for line in record.lines())])
    told = summary(experiment.method, experiment.evaluation, records, ["a"])
    run.finish({**told, "method": told["method"] + " alone" * alone})
    return path


def counts(better: int, worse: int, samples: int) -> tuple[str, str]:
    """The answers of two runs of which the first is better, and worse, on so many samples; both right on the rest."""
    both = "1" * (samples - better - worse)
    return "1" * better + "0" * worse + both, "0" * better + "1" * worse + both
