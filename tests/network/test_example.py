"""The hospitals of examples/hospital, on this machine, as a reader would run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="lacking: extra flower")

from protea.engines.flower.programs import free_port
from protea.network.site.directory import Site

HOSPITAL = Path(__file__).parents[2] / "examples" / "hospital"
SITES = {"north": "mlp", "south": "site.py:Gated", "coast": "site.py:Sequential"}
ROUNDS = 5

pytestmark = [pytest.mark.network, pytest.mark.xdist_group("engines")]


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory that the script was given, and what it printed."""
    work = tmp_path_factory.mktemp("hospital") / "work"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "ROUNDS": str(ROUNDS), "PORT": str(free_port())}
    script = subprocess.Popen(
        ["bash", str(HOSPITAL / "walkthrough.sh"), str(work)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = script.communicate(timeout=900)
    finally:
        script.terminate()  # it ends what it started
        script.wait(timeout=30)
    assert script.returncode == 0, printed[-3000:]
    return work, printed


def test_the_hospitals_learn(walked: tuple[Path, str]):
    _, printed = walked
    (accuracy,) = re.findall(r"^Accuracy (\d+\.\d) % on the sites' own test samples", printed[-400:], re.MULTILINE)
    (commonest,) = re.findall(r"commonest class: (\d+\.\d)% right", printed)
    assert float(accuracy) > 90 > 70 > float(commonest)
    for round in range(1, ROUNDS + 1):
        assert f"Round {round} of {ROUNDS}, accuracy" in printed
    assert "Left out" not in printed


@pytest.mark.parametrize("site", SITES)
def test_each_hospital_wrote_down_every_message_that_it_sent(walked: tuple[Path, str], site: str):
    work, _ = walked
    lines = [json.loads(line) for line in (work / site / "audit.jsonl").read_text(encoding="utf-8").splitlines()]
    for task in ("train", "evaluate"):
        assert {line["round"] for line in lines if line["task"] == task} == set(range(1, ROUNDS + 1))
    sent = [line for line in lines if line["task"] == "train"]
    assert all(line["tensors"]["vectors"]["shape"] == [2, 32] for line in sent)  # prototypes, and no weights
    assert all(line["numbers"] == 4 * (2 * 32 + 2) < line["bytes"] for line in sent)
    assert all(re.fullmatch("[0-9a-f]{32}", line["blake2b"]) for line in lines)


@pytest.mark.parametrize("site", SITES)
def test_each_hospital_has_its_own_model_to_use(walked: tuple[Path, str], site: str, monkeypatch: pytest.MonkeyPatch):
    work, _ = walked
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = Site(work / site)
    model = found.trained()
    model.load_state_dict(load_file(work / f"{site}.safetensors"))
    x, y = found.dataset.x[found.share.test], found.dataset.y[found.share.test]
    assert (model(x).argmax(1) == y).float().mean() > 0.8
    assert model.name == SITES[site]


def test_three_architectures(walked: tuple[Path, str]):
    work, _ = walked
    weights = [load_file(work / f"{site}.safetensors") for site in SITES]
    assert len({tuple(sorted((name, *t.shape) for name, t in each.items())) for each in weights}) == 3


def test_the_script_refuses_a_directory_in_use_and_leaves_the_repository_alone(walked: tuple[Path, str]):
    work, _ = walked
    done = subprocess.run(["bash", str(HOSPITAL / "walkthrough.sh"), str(work)], capture_output=True, text=True)
    assert done.returncode == 1 and "is not empty" in done.stderr
    written = {path.name for path in HOSPITAL.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert written == {"README.md", "walkthrough.sh", "deal.py", "site.py", "site.toml", "policy.toml"}
