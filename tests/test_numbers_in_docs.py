"""Numbers on pages about privacy and bad parties are those of the files that the page names as their source."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs_scripts import DOCS, script

from protea.core.accounting import epsilon_of
from protea.filters.noise import Noise


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_row_of_the_study_of_attacks_is_that_of_its_runs() -> None:
    figure, text = script("robustness_figure.py"), page("robustness.md")
    found = figure.collected(DOCS / "robustness.csv")
    methods = sorted({method for method, _, _ in found})
    assert len(methods) == 7 and {len(seeds) for seeds in found.values()} == {3}
    for method in methods:
        assert figure.markdown(found, method) in text, method


def test_every_number_of_bad_clients_is_that_of_its_runs() -> None:
    shares, text = script("robustness_shares.py"), page("robustness.md")
    found = shares.collected()
    assert {len(seeds) for seeds in found.values()} == {3}
    assert shares.written(text, found) == text


def test_what_bound_does_is_what_its_runs_say() -> None:
    bound, text = script("results/bound.py"), page("robustness.md")
    for table in bound.tables().split("\n\n"):
        assert table in text
    reported = [float(row["honest"]) for row in bound.kept() if row["study"] == "reported"]
    lost = [none - scale for none, scale in zip(reported[::2], reported[1::2], strict=True)]
    assert len(lost) == 30 and max(lost) < 2 and abs(sum(lost) / 30) < 0.1  # "within two points; on average nothing"
    honest = [row for row in bound.kept() if row["study"] == "honest"]
    assert {row["changed"] for row in honest} == {"0"}  # nothing is done to those who are honest
    pairs: dict[tuple[str, ...], set[str]] = {}
    for row in honest:
        pairs.setdefault(tuple(row[name] for name in bound.FIELDS[:5]), set()).add(row["honest"])
    assert all(len(accuracies) == 1 for accuracies in pairs.values())  # with and without it, where both were run


def test_every_table_of_the_fair_test_is_that_of_its_runs() -> None:
    gain, text = script("results/gain.py"), page("results/gain.md")
    runs = gain.Runs(gain.lines())
    assert len(runs.lines) == 900 and gain.written(text, runs) == text
    won, level, lost = (
        sum(int(row[-1].split(" / ")[place]) for row in gain.against(runs, "own")) for place in range(3)
    )
    assert f"Of {won + level + lost} comparisons of own accuracy FedLOO wins {won}, one is level" in text
    assert (level, lost) == (1, 0)


def test_what_a_round_costs_is_added_to_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times = script("results/gain_times.py")
    (tmp_path / "times.csv").write_text("data,method,times\nfashion,fedsa,1.25\n")
    for name, value in {"CSV": tmp_path / "times.csv", "METHODS": ("fedproto",), "ROUNDS": 1}.items():
        monkeypatch.setattr(times, name, value)
    times.main(["digits"])
    found = times.times()
    assert found.keys() == {("digits", "fedproto"), ("fashion", "fedsa")} and found["fashion", "fedsa"] == "1.25"
    assert float(found["digits", "fedproto"]) > 0


def test_what_the_earlier_projector_bent_is_what_its_runs_say() -> None:
    projector, text = script("results/projector.py"), page("results.md")
    assert projector.written(text, projector.known()) == text
    said = [
        path
        for path in (DOCS / "methods").glob("*.md")
        if f"<!-- {projector.MARK}: begin -->" in path.read_text("utf-8")
    ]
    assert {"fedpagr", "fedproc", "fedproto", "fedsa", "fedtgp", "protonorm"} <= {path.stem for path in said}
    for path in said:
        assert projector.of_method(path.read_text("utf-8"), projector.known(), path.stem) == path.read_text("utf-8")


@pytest.mark.parametrize(
    ("data", "curve", "row"),
    [
        ("banking77", "FedProto, frozen MiniLM", "FedProto, frozen MiniLM"),
        ("digits", "FedProto, frozen random features", "FedProto, frozen random features"),
        ("digits", "FedLOO, common map", "FedLOO, `parts = least = 1`"),
        ("digits", "FedProto, DP-SGD and noise", "FedProto, DP-SGD and noise, one seed"),
    ],
)
def test_every_accuracy_beside_an_epsilon_is_that_of_its_runs(data: str, curve: str, row: str) -> None:
    curves = script("privacy_curves.py")
    found = curves.collected()[data][curve]
    line = next(line for line in page("privacy.md").splitlines() if f"| {row} |" in line)
    cells = [cell.strip() for cell in line.split("|")[3:-1]]
    assert len(cells) == len(curves.EPSILONS) + 1
    for cell, epsilon in zip(cells, [*(f"{each:g}" for each in curves.EPSILONS), "none"], strict=True):
        values = found[epsilon]
        mean = f"{sum(values) / len(values):.1f}"
        assert cell == (mean if len(values) == 1 else f"{mean} ({min(values):.1f}-{max(values):.1f})")


def test_every_epsilon_in_the_table_of_noise_is_what_is_accounted() -> None:
    lines = page("privacy.md").splitlines()
    (head,) = [line for line in lines if line.startswith("| noise (counts = 3 noise) |")]
    noises = [float(cell) for cell in head.split("|")[2:-1]]
    for name, releases in (("| epsilon of one release |", 1), ("| of ten |", 10)):
        (row,) = [line for line in lines if line.startswith(name)]
        cells = [float(cell) for cell in row.split("|")[2:-1]]
        found = [epsilon_of([Noise(noise=noise).event(releases)], 1e-5) for noise in noises]
        assert found == [pytest.approx(cell, rel=0.005, abs=0.005) for cell in cells]
