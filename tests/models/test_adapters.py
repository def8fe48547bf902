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


def test_projector_ends_with_layernorm():
    """With the weights below the last layer's input is (7, 3): of mean 5 and deviation 2, so the output is (1, -1).

    Worked out: LayerNorm makes (3, 1, -1, -3) out of (3, 1) to (3, 1, -1, -3) / sqrt(5), and ReLU keeps the first two.
    Their sums with the rows (sqrt(5), sqrt(5)) + 3 and (sqrt(5), 0) + 0 are 4 + 3 and 3 + 0.
    """
    root = 5**0.5
    projector = Projector(2, 2, dropout=0.0).double()
    inner, outer = projector.layers[0], projector.layers[4]
    with torch.no_grad():
        inner.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [-1.0, 0.0]]))
        inner.bias.zero_()
        outer.weight.copy_(torch.tensor([[root, root, 9.0, 9.0], [root, 0.0, 9.0, 9.0]]))
        outer.bias.copy_(torch.tensor([3.0, 0.0]))
    z = projector(torch.tensor([[3.0, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(z, torch.tensor([[1.0, -1.0]], dtype=torch.float64), atol=1e-5, rtol=0)


def test_features_of_the_projector_have_the_length_of_layernorm_and_not_1():
    """Mean 0 and deviation 1 over 16 numbers make the length 4, until the last LayerNorm learns another one."""
    projector = Projector(7, 16, dropout=0.1)
    x = torch.randn(4, 7)
    z = projector(x)
    torch.testing.assert_close(z.norm(dim=1), torch.full((4,), 4.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(z.sum(1), torch.zeros(4), atol=1e-5, rtol=0)
    with torch.no_grad():
        projector.layers[-1].weight.fill_(0.5)
    torch.testing.assert_close(projector(x).norm(dim=1), torch.full((4,), 2.0), atol=1e-3, rtol=0)


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
