from __future__ import annotations

import torch
from torch import nn

from protea.core.split_model import SplitModel
from protea.models.adapters import Pool, Projector, make_adapter, make_head


def test_pool_repeats_features_that_are_too_few():
    assert Pool(4)(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0, 1.0, 2.0, 2.0]]


def test_pool_averages_features_that_are_too_many_over_windows_that_overlap():
    assert Pool(2)(torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])).tolist() == [[1.0, 3.0]]


def test_pool_leaves_features_that_fit():
    z = torch.randn(3, 5)
    assert Pool(5)(z) is z


def test_projector_gives_unit_vectors_orthogonal_to_ones():
    """Its last LayerNorm makes every row sum to zero before it is scaled to length one."""
    z = Projector(7, 16, dropout=0.1)(torch.randn(4, 7))
    torch.testing.assert_close(z.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(z.sum(1), torch.zeros(4), atol=1e-5, rtol=0)


def test_projector_has_a_further_layer_only_where_widths_differ():
    assert isinstance(Projector(16, 16, 0.1).resize, nn.Identity)
    assert isinstance(Projector(7, 16, 0.1).resize, nn.Linear)


def test_linear_adapter_is_learned_even_where_widths_agree():
    layer = make_adapter("linear", 6, 6, 0.1)
    assert sum(p.numel() for p in layer.parameters()) == 6 * 6 + 6


def test_head_without_hidden_layers_is_one_linear_layer():
    head = make_head(512, (), 100)
    assert isinstance(head, nn.Linear)
    assert sum(p.numel() for p in head.parameters()) == 51_300


def test_scores_of_a_deep_head_can_be_negative():
    torch.manual_seed(0)
    head = make_head(4, (8, 6), 3)
    assert [type(layer).__name__ for layer in head] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert (head(torch.randn(200, 4)) < 0).any()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x


def test_a_model_that_reuses_features_computes_the_features_of_a_batch_once():
    model = SplitModel(Counting(), Pool(3), nn.Linear(3, 2))
    x, other = torch.randn(2, 3), torch.randn(2, 3)
    with model.reuse_features():
        model.features(x), model(x)
        assert model.body.calls == 1
        model(other)
        assert model.body.calls == 2
    model(other), model(other)
    assert model.body.calls == 4
