"""Records and ``metrics.jsonl``: what was written once is read for ever, and written again to the byte."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from protea.evaluation.scores import MetricScore, PartRecord, Score
from protea.federation.ledger import Ledger
from protea.federation.privacy import Privacy
from protea.federation.record import ClientBytes, ClientData, ClientRecord, DataRecord, Record, read_metrics

DATA = (
    '{"kind": "data", "round": 0, "classes": ["ant", "bee"], "clients": ['
    '{"client": 0, "architecture": "tiny_mlp", "parameters": 9651, "train": [38, 0], "validation": [6, 0], '
    '"test": [11, 0]}, '
    '{"client": 1, "site": "north", "architecture": "own", "parameters": 0, "train": [0, 0], "validation": [0, 0], '
    '"test": [0, 0]}]}'
)
ROUND = (
    '{"kind": "round", "accuracy": 0.75, "round": 1, "participants": [0, 2], "loss": 1.8089239746332169, '
    '"test": {"method": {"weighted": 0.75, "uniform": 0.5, "balanced": 0.7, "macro_f1": 0.6, "calibration": 0.25}}, '
    '"validation": {}, "classes": {"samples": [11, 5], "hits": [10, 2], "answers": [13, 3]}, '
    '"shared": {"method": {"ensemble": 0.5, "clients": 0.25}}, "server": {"head": 0.125}, '
    '"geometry": {"margins": [1.5, 0.0], "widest": [2.0, 0.0], "shrinkage": 0.75, "apart": null, "inter": 2.0, '
    '"intra": 0.5}, "values": {"server_loss": null, "margin": 3.0}, "bytes_up": 76, "bytes_down": 80, '
    '"total_up": 176, "total_down": 80, "failures": {"2": "its loss is nan"}, "refused": [2], '
    '"absent": {"3": "late"}, "cost": {"seconds": {"train": 0.1, "server": 0.0, "evaluate": 0.2}, "memory": 1024}}'
)
TRAINED = (
    '{"kind": "client", "round": 1, "client": 0, "loss": 0.4254937469959259, "up": 76, "down": 80, "total_up": 176, '
    '"total_down": 80, "test/samples": 16, "test/classes": {"0": [10, 11], "1": [2, 5]}, "test/head": 9, '
    '"test/method": 12, "validation/samples": 6, "validation/classes": {"0": [6, 6]}, "validation/head": 3, '
    '"validation/method": 6, "inter": 3.25, "intra": 1.5, "shared/head": 0.4166666666666667, "shared/method": 0.5}'
)
EVALUATED = '{"kind": "client", "round": 1, "client": 1, "shared/head": 0.25}'
SILENT = (
    '{"kind": "client", "round": 1, "client": 2, "loss": null, "up": 0, "down": 80, "total_up": 0, "total_down": 80}'
)
LINES = [DATA, ROUND, TRAINED, EVALUATED, SILENT]


def read(lines: list[str] = LINES) -> tuple[DataRecord, list[Record]]:
    return read_metrics(map(json.loads, lines))


def test_lines_come_back_to_the_byte():
    data, (record,) = read()
    assert [json.dumps(line) for line in (data.line(), *record.lines())] == LINES


def test_a_record_has_types():
    data, (record,) = read()
    assert data.classes == ["ant", "bee"] and data.clients[1].site == "north"
    assert data.clients[0] == ClientData(0, "tiny_mlp", 9651, [38, 0], [6, 0], [11, 0])
    assert record.test["method"] == Score(0.75, 0.5, 0.7, 0.6, 0.25) and record.accuracy == 0.75
    assert record.failures == {2: "its loss is nan"} and record.absent == {3: "late"}
    trained, evaluated, silent = record.clients
    assert trained.bytes == ClientBytes(up=76, down=80, total_up=176, total_down=80)
    assert trained.parts["test"] == PartRecord(16, {0: (10, 11), 1: (2, 5)}, {"head": 9, "method": 12})
    assert trained.accuracy == 12 / 16 and trained.accuracy_by("head", "validation") == 3 / 6
    assert trained.accuracy_by("local_prototypes") is None and (trained.inter, trained.intra) == (3.25, 1.5)
    assert evaluated.bytes is None and evaluated.accuracy is None and evaluated.shared == {"head": 0.25}
    assert silent.bytes is not None and silent.loss is None
    assert record.judged == {0}


def test_what_adds_up_is_read_from_the_records():
    records = read()[1]
    ledger = Ledger.of(records, max_refusals=1)
    assert (ledger.up, ledger.down) == ({0: 76, 2: 0}, {0: 80, 2: 80})
    assert ledger.quarantined(2) and not ledger.quarantined(0)


def test_metrics_of_the_users_own_are_written_only_where_there_are_any():
    record = read()[1][0]
    part = replace(record.clients[0].parts["test"], metrics={"auc": 0.5})
    more = replace(
        record,
        metrics={"auc": MetricScore(0.5, 0.25)},
        clients=[ClientRecord({"test": part}, client=0)],
    )
    lines = [json.loads(json.dumps(line)) for line in more.lines()]
    assert lines[0]["metrics"] == {"auc": {"weighted": 0.5, "uniform": 0.25}} and "validation_metrics" not in lines[0]
    assert lines[1]["test/metrics"] == {"auc": 0.5}
    (again,) = Record.read(lines)
    assert again == more and again.clients[0].metrics == {"auc": 0.5}


def test_without_clients_only_rounds_are_read():
    _, (record,) = read_metrics(map(json.loads, LINES), clients=False)
    assert record.clients == [] and record.round == 1


def test_rounds_of_earlier_versions_lack_what_came_later():
    line = {name: value for name, value in json.loads(ROUND).items() if name not in ("refused", "absent", "values")}
    (record,) = Record.read([line])
    assert (record.refused, record.absent, record.values) == ([], {}, {})


def test_a_line_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="'summary' is none of a run's metrics"):
        read_metrics([{"kind": "summary"}])


@pytest.mark.parametrize(
    "told",
    [
        {"no guarantee": float("nan")},
        {"no guarantee": float("inf")},
        {"epsilon": float("nan"), "delta": 1e-5},
        {"epsilon": 1.0, "delta": float("inf")},
        {"epsilon": -1.0, "delta": 1e-5},
        {"epsilon": 1.0, "delta": 1e-5, "spent": float("nan")},
    ],
)
def test_numbers_of_a_client_that_mean_nothing_are_no_guarantee(told: dict[str, float]) -> None:
    """They come over the network, before anything else of the reply is looked at."""
    found = Privacy.read(told)
    assert found is not None and not found.formal and found.why


@pytest.mark.parametrize(
    "line",
    [
        [],
        3,
        {"kind": "client", "round": 1, "client": 0},
        {"kind": "data", "classes": 3},
        {"kind": "round"},
        {"kind": "other"},
    ],
)
def test_lines_that_are_no_records_are_refused_by_one_kind_of_error(line: object) -> None:
    with pytest.raises(ValueError):
        read_metrics([line])  # type: ignore[list-item]
