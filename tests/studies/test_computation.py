"""Operations counted from architectures, and the tables of papers that need nothing else."""

from __future__ import annotations

import pytest
from typed import Command

from protea.config.families import Member, Models
from protea.models.maker import ModelMaker
from protea.studies import papers
from protea.studies.computation import computed, forward


def test_a_network_is_counted_by_hand():
    """CNN4 on 3x32x32: convolutions to 28x28 and 10x10, layers 1600 x 512 and 512 x 100; each product is two."""
    maker = ModelMaker(Models(family="cnn4", dim=512), (3, 32, 32), 100)
    products = 28 * 28 * 32 * 75 + 10 * 10 * 64 * 800 + 1600 * 512 + 512 * 100
    found, parameters = forward(maker, Member("cnn4"))
    assert found == pytest.approx(2 * products / 1e9, rel=1e-6) and parameters == 924_708


def test_a_second_model_costs_as_often_as_the_own_one():
    preset, cells = papers.find("fedtgp/table12")
    small = papers.Preset.experiment

    def tiny(self: papers.Preset, cell: str, row: str):  # type: ignore[no-untyped-def]
        return small(self, cell, row, ["models.family=tiny5", "clients=7"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers.Preset, "experiment", tiny)
        local, fml, fedkd, fedgen = (
            computed(preset, cells[0], row, "computation") for row in ("FedProto", "FML", "FedKD", "FedGen")
        )
        maker = ModelMaker(preset.experiment(cells[0], "FedProto").models, (3, 32, 32), 100)
        each = [forward(maker, member) for member in maker.members]
    assert local == pytest.approx(4 * sum(each[client % 5][0] for client in range(7)))
    assert fml == fedkd == pytest.approx(local + 4 * 7 * min(each, key=lambda pair: pair[1])[0])
    assert local < fedgen < fml


def test_the_command_prints_both_numbers_and_runs_nothing(typed: Command):
    said = typed("reproduce", "fedtgp/table8/cnn4")
    row = next(line.split() for line in said.lines if line.split()[:1] == ["cnn4"])
    assert row == ["cnn4", "HtFE8", "0.013", "0.016"]
    assert "twice the multiply-adds" in said.out and "Runs:" not in said.out
