"""What clients say of samples that everybody has."""

from __future__ import annotations

import pytest
import torch
import toy
from torch import Tensor

from protea import Server
from protea.core.errors import PayloadError
from protea.core.public_answers import check_rows, draw_public, select_public, weighted_mean
from protea.core.rng import Streams
from protea.core.samples import Samples

PUBLIC = len(toy.PUBLIC)


def drawn(server: Server, count: int, round: int) -> Tensor:
    server.round = round
    return draw_public(server, count)


def test_so_many_samples_are_drawn_as_asked_for_or_all():
    server = toy.server()
    assert [int(drawn(server, count, 1).sum()) for count in (1, 7, PUBLIC, 5000)] == [1, 7, PUBLIC, PUBLIC]
    assert drawn(server, 7, 1).dtype == torch.bool


def test_each_round_draws_its_own_samples_and_draws_them_again_when_repeated():
    server = toy.server()
    assert torch.equal(drawn(server, 7, 1), drawn(server, 7, 1))
    assert not torch.equal(drawn(server, 7, 1), drawn(server, 7, 2))


def test_every_sample_has_its_turn():
    server = toy.server()
    assert torch.stack([drawn(server, 7, round) for round in range(30)]).any(0).all()


def test_a_choice_names_samples_in_their_order():
    public = Samples(toy.BLOBS, toy.PUBLIC)
    mask = torch.zeros(PUBLIC, dtype=torch.bool)
    mask[[20, 3]] = True
    x, y = select_public(public, mask).batch(torch.arange(2))
    assert torch.equal(x, toy.BLOBS.x[[3, 20]]) and torch.equal(y, toy.BLOBS.y[[3, 20]])


@pytest.mark.parametrize(
    "mask",
    [torch.ones(PUBLIC + 1, dtype=torch.bool), torch.ones(PUBLIC), torch.ones(PUBLIC, 1, dtype=torch.bool)],
    ids=["one too many", "floats", "a column"],
)
def test_a_choice_that_is_not_a_bool_for_each_sample_is_refused(mask: Tensor):
    with pytest.raises(PayloadError, match="not a bool for each of 24"):
        select_public(Samples(toy.BLOBS, toy.PUBLIC), mask)


def test_rows_are_floats_one_for_each_sample():
    check_rows("Scores", torch.zeros(4, 3), 4, 3)
    check_rows("Scores", torch.zeros(0, 3), None, 3)
    for found, rows in [
        (torch.zeros(5, 3), 4),
        (torch.zeros(4, 2), 4),
        (torch.zeros(4, 2), None),
        (torch.zeros(12), 4),
        (torch.zeros(4, 3, 1), 4),
    ]:
        with pytest.raises(PayloadError, match=r"Scores of shape .* expected are"):
            check_rows("Scores", found, rows, 3)
    with pytest.raises(PayloadError, match="float64 arrived, not of float32"):
        check_rows("Scores", torch.zeros(4, 3).double(), 4, 3)


def test_scores_of_three_clients_by_the_variance_of_each():
    """(0, 2), (1, 1) and (0, 4) have variances 1, 0 and 4: shares 0.2, 0 and 0.8."""
    scores = torch.tensor([[[0.0, 2.0]], [[1.0, 1.0]], [[0.0, 4.0]]])
    torch.testing.assert_close(weighted_mean(scores, scores.var(2, correction=0)), torch.tensor([[0.0, 3.6]]))


def test_each_sample_has_its_own_weights_and_where_all_are_0_clients_count_the_same():
    values = torch.tensor([[[1.0], [1.0], [1.0]], [[5.0], [5.0], [5.0]]])  # of two clients, three samples
    weights = torch.tensor([[3.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
    assert weighted_mean(values, weights).squeeze(1).tolist() == [2, 5, 3]


def test_a_blend_is_of_the_weights_shares_alone():
    with Streams(0).default("test"):
        values, weights = torch.randn(3, 4, 2), torch.rand(3, 4)
    torch.testing.assert_close(weighted_mean(values, weights), weighted_mean(values, 1e-6 * weights))
    torch.testing.assert_close(weighted_mean(values, torch.ones(3, 4)), values.mean(0))
