"""``protea site predict``: a site's own trained model answers new samples, and nothing leaves."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typed import Command

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
import torch

from protea.core.payload import pack
from protea.core.prototypes import Prototypes
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.directory import Site
from protea.network.site.predict import trained_client
from protea.network.site.service import SiteService

IMAGES = load_digits().data.astype("float32") / 16


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Command) -> Command:
    monkeypatch.chdir(tmp_path)
    np.savez("new.npz", x=IMAGES[150:200], y=load_digits().target[150:200])
    return typed


@pytest.fixture
def coordinator(tmp_path: Path) -> CoordinatorDirectory:
    return places.base(tmp_path / "coordinator")


@pytest.fixture
def site(tmp_path: Path, coordinator: CoordinatorDirectory) -> Site:
    return places.site(tmp_path / "site", coordinator.invite("north"))


def train(site: Site, coordinator: CoordinatorDirectory, rounds: int = 1) -> None:
    """Some rounds, as a coordinator asks for them."""
    service = SiteService(site)
    for round in range(1, rounds + 1):
        service.handle("job", coordinator.signer("job", places.job("train", round)))


def table(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_site_that_has_not_trained_says_so(command: Command, site: Site):
    done = command("site", "predict", "new.npz", "--dir", site.path)
    assert done.code == 2 and "has not trained yet" in done.err


def test_the_classifier_answers_and_the_output_says_why(
    command: Command, site: Site, coordinator: CoordinatorDirectory
):
    train(site, coordinator, 2)
    audit = (site.path / "audit.jsonl").read_bytes()
    done = command("site", "predict", "new.npz", "--dir", site.path, "--out", "out.csv")
    assert (done.code, done.err) == (0, "")
    assert done.lines[:2] == [
        "Site north (site.py:Sequential) after round 2: 50 samples.",
        "Answered by rule head (classifier).  The method's own rule needs what the coordinator last sent, and the site "
        "was not evaluated after its last round.",
    ]
    with torch.no_grad():
        expected = site.trained()(torch.from_numpy(IMAGES[150:200])).softmax(1)
    rows = table("out.csv")
    found = torch.tensor([[float(row[f"p_{name}"]) for name in places.CLASSES] for row in rows])
    torch.testing.assert_close(found, expected)
    assert rows[0]["true"] == places.CLASSES[load_digits().target[150]]
    assert "Accuracy" in done.out and (site.path / "audit.jsonl").read_bytes() == audit


def test_rules_that_need_a_broadcast_are_refused(command: Command, site: Site, coordinator: CoordinatorDirectory):
    train(site, coordinator)
    done = command("site", "predict", "new.npz", "--dir", site.path, "--rule", "method")
    assert done.code == 2 and "--rule method needs what the coordinator last sent" in done.err
    done = command("site", "predict", "new.npz", "--dir", site.path, "--rule", "tail")
    assert (
        done.code == 2 and "--rule tail does not exist.  There is: head, head_own, local_prototypes, blend." in done.err
    )
    done = command("site", "predict", "new.npz", "--dir", site.path, "--rule", "local_prototypes")
    assert (
        done.code == 0 and "Answered by rule local_prototypes (nearest of the client's own prototypes)." in done.lines
    )


def test_where_the_method_answers_by_the_classifier_this_is_said(tmp_path: Path, command: Command):
    coordinator = places.base(tmp_path / "coordinator", method="local")
    site = places.site(tmp_path / "site", coordinator.invite("north"))
    train(site, coordinator)
    done = command("site", "predict", "new.npz", "--dir", site.path)
    assert done.code == 0 and "This is also the method's own rule." in done.lines[1]


@pytest.mark.parametrize("method", ["fedproto", "fedpagr", "local"])
def test_a_site_blends_what_it_has(tmp_path: Path, command: Command, method: str):
    """Also where the method needs what the coordinator sent; and without being asked, if the task says so."""
    coordinator = places.base(tmp_path / "coordinator", "evaluation.answer=blend", method=method)
    site = places.site(tmp_path / "site", coordinator.invite("north"))
    down = {} if method == "local" else pack(Prototypes(torch.eye(10, 16), torch.ones(10)))
    SiteService(site).handle("job", coordinator.signer("job", places.job("train", 1, down=down)))
    done = command("site", "predict", "new.npz", "--dir", site.path, "--out", "out.csv")
    assert (done.code, done.err) == (0, "")
    assert done.lines[1].startswith("Answered by rule blend (")
    assert "Blended of the classifier, prototypes of this site's training samples" in done.lines[1]
    asked = command("site", "predict", "new.npz", "--dir", site.path, "--out", "asked.csv", "--rule", "blend")
    assert asked.code == 0 and table("asked.csv") == table("out.csv")


def test_a_protected_site_answers_by_what_is_best_on_its_held_out_samples(tmp_path: Path, command: Command):
    coordinator = places.base(tmp_path / "coordinator", protect=True)
    site = places.site(tmp_path / "site", coordinator.invite("north"))
    train(site, coordinator, 2)
    done = command("site", "predict", "new.npz", "--dir", site.path, "--rule", "head")
    assert done.code == 0 and "This site is protected: --rule method answers" in done.lines[1]
    done = command("site", "predict", "new.npz", "--dir", site.path, "--out", "out.csv")  # by the best, without asking
    assert done.code == 0 and "Best on this site's held-out samples is the" in done.lines[1]
    _, trained = trained_client(site.path)
    expected = trained.predict(torch.from_numpy(IMAGES[150:200]))
    found = torch.tensor([[float(row[f"p_{name}"]) for name in places.CLASSES] for row in table("out.csv")])
    torch.testing.assert_close(found, expected)
