"""Small models for texts."""

from __future__ import annotations

import pytest
import torch
from own_models import build
from torch import nn

from protea.config.families import Member
from protea.core.errors import ConfigError
from protea.core.split_model import SplitModel
from protea.models.text import mean_of_words, trim_padding

NAMES = ("bag", "textcnn", "bilstm")
TEXTS = ["fever and chest pain for three days", "broken wrist", "", "fever " * 300]


def made(name: str, **keywords: object) -> SplitModel:
    torch.manual_seed(0)
    settings = {"buckets": 500, "width": 12, "length": 20, **keywords}
    return build(Member(name, settings), shape=(), classes=3, dim=16, adapter="linear")


def seen(model: SplitModel, texts: list[str]) -> torch.Tensor:
    assert model.view is not None
    return model.view(texts)


@pytest.mark.parametrize("name", NAMES)
def test_features_and_scores_of_any_text(name: str):
    model = made(name).eval()
    x = seen(model, TEXTS)
    assert model.features(x).shape == (4, 16) and model(x).shape == (4, 3)
    assert torch.isfinite(model(x)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_read_alike_whatever_longer_ones_are_beside_it(name: str):
    model = made(name).eval()
    alone, together = model(seen(model, TEXTS[1:2])), model(seen(model, TEXTS))[1:2]
    torch.testing.assert_close(alone, together)


@pytest.mark.parametrize("name", NAMES)
def test_padding_never_trains(name: str):
    model = made(name)
    model(seen(model, TEXTS)).sum().backward()
    words = model.body.words
    assert isinstance(words, nn.Embedding) and words.weight.grad is not None
    assert not words.weight.grad[0].any() and words.weight.grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_which_words_mean_what(name: str):
    model = made(name)
    texts = [f"{a} {b}" for a in ("fever", "cough", "chill") for b in ("today", "now", "again", "before")]
    x, y = seen(model, texts), torch.arange(3).repeat_interleave(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    unseen = seen(model, ["fever yesterday", "cough yesterday", "chill yesterday"])
    assert model.eval()(unseen).argmax(1).tolist() == [0, 1, 2]


def test_order_matters_to_all_but_the_bag():
    for name in NAMES:
        model = made(name).eval()
        one, other = model(seen(model, ["pain no fever", "fever no pain"]))
        assert torch.allclose(one, other) == (name == "bag")


def test_the_mean_is_over_words_only():
    vectors = torch.tensor([[[2.0], [4.0], [9.0]], [[5.0], [7.0], [1.0]]])
    there = torch.tensor([[True, True, False], [False, False, False]])
    assert mean_of_words(vectors, there).tolist() == [[3.0], [0.0]]


def test_columns_without_words_are_cut_at_the_end_only():
    assert trim_padding(torch.tensor([[0, 5, 0, 0], [0, 0, 0, 0]])).tolist() == [[0, 5], [0, 0]]
    assert trim_padding(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 1)


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="architecture 'bag': 1 buckets"):
        made("bag", buckets=1)
    with pytest.raises(ConfigError, match="Its settings are: buckets, width, length"):
        made("bag", depth=3)
