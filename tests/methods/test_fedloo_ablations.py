"""What was tried beside FedLOO: each variant changes what it says and nothing else, and the page has its numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import toy

from protea import Prototypes
from protea.methods.fedloo import FedLOO

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def ablations(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(DOCS / "results")
    monkeypatch.delitem(sys.modules, "fedloo_ablations", raising=False)
    import fedloo_ablations

    return fedloo_ablations


def test_the_page_has_the_table_of_the_runs(ablations: Any) -> None:
    found = ablations.kept()
    assert {seed for _, _, seed, _ in found} <= {1, 2, 3}  # those of gain.md choose nothing
    rows = ablations.table(found).splitlines()[2:]
    assert len(rows) == len(ablations.ROWS)
    page = (DOCS / "methods" / "fedloo.md").read_text(encoding="utf-8")
    assert all(row in page for row in rows)


def test_averages_leave_training_as_it_is(ablations: Any) -> None:
    plain, _ = toy.play(FedLOO())
    found, _ = toy.play(ablations.Averaged())
    assert toy.same_models(plain, found)
    for client in found.clients.values():
        short, long = (list(client.memory[name].parameters()) for name in ("short", "long"))
        own = list(client.model.parameters())
        apart = [sum(float((a - b).detach().norm()) for a, b in zip(each, own, strict=True)) for each in (short, long)]
        assert 0 < apart[0] < apart[1]  # the longer average is further behind


def test_variants_train_as_local_until_others_are_trusted_and_not_from_then_on(ablations: Any) -> None:
    plain = {rounds: toy.play(FedLOO(), rounds=rounds)[0] for rounds in (2, 4)}
    for method in (ablations.Residual(), ablations.Structural(weight=1.0)):
        for rounds, same in ((2, True), (4, False)):  # a scale is found in round 2, and used from round 3 on
            assert toy.same_models(plain[rounds], toy.play(method, rounds=rounds)[0]) == same
    assert toy.same_models(plain[4], toy.play(ablations.Structural(weight=0.0), rounds=4)[0])


def test_private_axes_are_the_clients_own_and_answer_by_cosines(ablations: Any) -> None:
    method = ablations.PrivateAxes(own=0.0)
    worker, _ = toy.play(method)
    axes = [client.memory["axes"] for client in worker.clients.values()]
    assert not torch.equal(axes[0], axes[1])
    torch.testing.assert_close(axes[0].norm(dim=1), torch.ones(toy.CLASSES))
    client, x = worker.clients[0], toy.BLOBS.x[:20]
    client.set_evaluation()
    with torch.no_grad():
        z = torch.nn.functional.normalize(client.model.features(x), dim=1)
        torch.testing.assert_close(method.predict(client, x, None), (10 * z @ axes[0].T).log_softmax(1))


def test_alignment_is_1_of_structures_that_agree_and_0_of_nothing(ablations: Any) -> None:
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))
    assert float(ablations.cka(x, 3 * x @ turn + 1)) == pytest.approx(1, abs=1e-5)
    assert float(ablations.cka(x, torch.ones(9, 3))) == 0


def test_fourier_features_are_a_map_that_all_have(ablations: Any) -> None:
    method, clients = ablations.Fourier(), [toy.ready(id=id) for id in (0, 3)]
    first, second = (method.phi(client)(toy.BLOBS.x[:6]) for client in clients)
    assert torch.equal(first, second) and first.shape == (6, toy.DIM) and (first[:, -1] == 1).all()
    assert isinstance(toy.play(method)[1].memory["discriminants"], torch.Tensor)
    assert Prototypes is method.down
